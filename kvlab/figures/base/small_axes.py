"""The axes of a thumbnail: where values of a plotly trace lie in a small picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Panel:
    """One pair of axes: where it lies in the picture, and the values at its edges."""

    left: float
    top: float
    width: float
    height: float
    x: Scale
    y: Scale

    def across(self, values: np.ndarray) -> np.ndarray:
        return self.left + self.x.share(values) * self.width

    def up(self, values: np.ndarray) -> np.ndarray:
        return self.top + (1 - self.y.share(values)) * self.height


@dataclass
class Scale:
    """One axis: categories by their order, or numbers (their logarithm on a log axis) between the outermost ones."""

    log: bool
    reverse: bool
    categories: dict[str, int]
    low: float = math.inf
    high: float = -math.inf

    def numbers(self, values: Any) -> np.ndarray:
        """Values as numbers; widens the axis to them."""
        listed = [] if values is None else list(values)
        if any(isinstance(value, str) for value in listed):
            places = [self.categories.setdefault(str(value), len(self.categories)) for value in listed]
            found = np.asarray(places, float)
        else:
            found = np.asarray([math.nan if value is None else float(value) for value in listed])
        if self.log:
            found = np.log10(np.where(found > 0, found, math.nan))
        finite = found[np.isfinite(found)]
        if len(finite):
            self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
        return found

    def share(self, values: np.ndarray) -> np.ndarray:
        span = self.high - self.low
        shares = (values - self.low) / span if span > 0 else np.where(np.isfinite(values), 0.5, math.nan)
        return 1 - shares if self.reverse else shares
