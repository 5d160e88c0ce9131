"""The exhibits of PyramidPool."""

from __future__ import annotations

from kvlab.atlas.exhibit_texts import exhibits_of
from kvlab.atlas.pyramid_pool import budgets, calculator, looking, scored

EXHIBITS = exhibits_of(
    "pyramid-pool",
    budgets.DRAWINGS | calculator.DRAWINGS | looking.DRAWINGS | scored.DRAWINGS,
    {"fig-1": calculator.ENTRIES},
)
