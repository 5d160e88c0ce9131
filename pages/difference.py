"""Where links to the former page of two runs lead: the cache wall, which shows their difference."""

from __future__ import annotations

from app.base.links import go
from app.session.url_state import params

query = params()
first = query.pop("a", None) or query.get("run")
go("wall", **(query | {"panes": "text,kl"} | ({"run": first} if first else {})))
