"""The exhibits of PyramidPool."""

from __future__ import annotations

from kvlab.atlas.exhibit import load_exhibits
from kvlab.atlas.pyramid_pool import budgets, calculator, looking, scored

EXHIBITS = load_exhibits(
    "pyramid-pool",
    budgets.DRAWINGS | calculator.DRAWINGS | looking.DRAWINGS | scored.DRAWINGS,
    {"fig-1": calculator.ENTRIES},
)
