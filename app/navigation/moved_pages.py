"""Former pages, by their place in links, and where these lead now."""

from __future__ import annotations

import streamlit as st

from app.base.links import go
from app.session.url_state import params


def moved_pages() -> list[st.Page]:
    """Hidden pages that open the view that took their place."""
    return [
        st.Page(difference, title="Difference of two runs", url_path="difference", visibility="hidden"),
        st.Page(killed, title="Restore the answer", url_path="killed", visibility="hidden"),
    ]


def difference() -> None:
    """The page of two runs `a` and `b`: the cache wall shows their difference."""
    query = params()
    first = query.pop("a", None) or query.get("run")
    go("wall", **(query | {"panes": "text,kl"} | ({"run": first} if first else {})))


def killed() -> None:
    """The former name of the page on restoring an answer."""
    go("restore", **params())
