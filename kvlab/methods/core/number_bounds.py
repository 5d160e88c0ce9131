"""How far a number of a setting may go where its field does not say so: whatever can be typed ends somewhere."""

from __future__ import annotations

import math
from typing import Any

MOST_WHOLE = 2**20  # tokens, slots, queries: more than any prompt that is run has
MOST, LEAST = 1e6, 1e-9  # weights, ridges, exponents: beyond these float32 has nothing left to tell


def in_bounds(value: Any) -> Any:
    """The value; raises ValueError for a number that is none, too far from zero, or closer to it than makes sense."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if isinstance(value, int):
        if abs(value) > MOST_WHOLE:
            raise ValueError(f"a whole number here is at most {MOST_WHOLE:,}")
    elif not math.isfinite(value) or abs(value) > MOST or 0 < abs(value) < LEAST:
        raise ValueError(f"a number here is 0 or from {LEAST:g} to {MOST:,.0f}")
    return value


def with_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema of settings whose numbers all say how far they go, for forms."""
    for field in schema.get("properties", {}).values():
        for part in field.get("anyOf", [field]):
            if part.get("type") in ("integer", "number"):
                most = MOST_WHOLE if part["type"] == "integer" else MOST
                if not {"maximum", "exclusiveMaximum"} & part.keys():
                    part["maximum"] = most
                if not {"minimum", "exclusiveMinimum"} & part.keys():
                    part["minimum"] = -most
    return schema
