"""Cache: the fate of every token in one layer and KV head, step by step."""

from __future__ import annotations

from app.cache import timeline
from app.run_views import page

page.heading(
    "Cache timeline",
    "Which token each slot holds at every step, and which slots were dropped or merged. Move through the steps "
    "with the slider, the play button or the arrow keys; hover over a word, a slot or the mosaic to highlight the"
    " words of one slot.",
)
timeline.draw()
