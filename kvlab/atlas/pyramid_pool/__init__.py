"""The exhibits of PyramidPool, in the order the paper prints them."""

from __future__ import annotations

from kvlab.atlas.exhibit import Exhibit
from kvlab.atlas.pyramid_pool import budgets, calculator, looking, scored

EXHIBITS: tuple[Exhibit, ...] = (*calculator.FIGURES, *budgets.FIGURES, *looking.FIGURES, *scored.EXHIBITS)
