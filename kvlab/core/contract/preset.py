"""The bounds of every number that a method takes, and names of its presets; `Preset` itself loads no torch."""

import math
from typing import Any

from kvlab.core.choice import Preset as Preset

MOST_WHOLE = 2**20  # tokens, slots, queries: beyond any prompt
# weights, ridges, exponents: beyond these, float32 has no precision left
MOST = 1e6
LEAST = 1e-9


def check_number(value: Any) -> Any:
    """Return the value; raises ValueError for NaN, infinity and numbers out of range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if isinstance(value, int):
        if abs(value) > MOST_WHOLE:
            raise ValueError(f"the largest allowed integer is {MOST_WHOLE:,}")
    elif not math.isfinite(value) or abs(value) > MOST or 0 < abs(value) < LEAST:
        raise ValueError(f"allowed numbers are 0 and {LEAST:g} to {MOST:,.0f}")
    return value


DEFAULT = "default"
PAPER = "paper"
