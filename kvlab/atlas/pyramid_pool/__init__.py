"""The exhibits of PyramidPool."""

from __future__ import annotations

from kvlab.atlas.exhibit import load_exhibits
from kvlab.atlas.pyramid_pool import calculator, recordings, scores

EXHIBITS = load_exhibits(
    "pyramid-pool",
    recordings.DRAWINGS | calculator.DRAWINGS | scores.DRAWINGS,
    {"fig-1": calculator.ENTRIES},
)
