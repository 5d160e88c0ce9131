"""Cache: every layer and head of a run at once."""

from __future__ import annotations

from app.base.links import go
from app.cache import wall
from app.run_views import page
from app.session.url_state import get_param, params

if get_param("b") not in (None, "none"):  # links of before: the wall drew the difference itself
    go("two_runs", **params())
page.heading(
    "Cache wall",
    "All heads at once: layers across, KV heads down. Each tile is the text, read like a page, in the colours of "
    "what its head has made of each token. Move through the steps, zoom in until you read the words, click a head"
    " to take it to the views below and to every other page.",
)
wall.draw()
