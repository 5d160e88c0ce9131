"""The exhibits of PyramidPool."""

from __future__ import annotations

from kvlab.atlas.exhibit import load_exhibits
from kvlab.atlas.pyramid_pool import attended_slots, budgets, calculator, scores

EXHIBITS = load_exhibits(
    "pyramid-pool",
    budgets.DRAWINGS | calculator.DRAWINGS | attended_slots.DRAWINGS | scores.DRAWINGS,
    {"fig-1": calculator.ENTRIES},
)
