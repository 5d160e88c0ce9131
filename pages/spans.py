"""Cache: what every run keeps of each part of the prompt."""

from __future__ import annotations

from app.cache import spans
from app.run_views import page

page.heading(
    "Prompt spans",
    "Which part of the prompt does each method forget? Each number is the share of a part's tokens, over all "
    "layers and heads, that are **kept whole**, in a slot of their own; the strip below it has those merged with "
    "others too. Under the parts stands whether the answer is right.",
)
spans.draw()
