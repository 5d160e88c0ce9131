"""Cache: the difference of two runs in every layer and head."""

from __future__ import annotations

from app.cache import wall
from app.run_views import page

page.heading(
    "Difference of two caches",
    "Which tokens only one of two runs still holds, in every head at once: **A** is the run, **B** the one beside"
    " it. Click a head to take it to the views below and to every other page.",
)
wall.draw(differs=True)
