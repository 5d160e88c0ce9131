"""Published settings of a method, each value with its source, and the bounds of every number that it takes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

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


@dataclass(frozen=True)
class Preset:
    """A published configuration of a method.

    `values`: (value, source: section, table, equation or file) by hyper-parameter. `about` names the publication;
    `beyond` says what no hyper-parameter can express.
    """

    about: str
    values: Mapping[str, tuple[Any, str]]
    beyond: str = ""

    def settings(self) -> dict[str, Any]:
        """Hyper-parameters by name."""
        return {name: value for name, (value, _) in self.values.items()}

    def as_data(self) -> dict[str, JsonValue]:
        """The preset for forms and tables."""
        values: dict[str, JsonValue] = {
            name: {"value": list(value) if isinstance(value, tuple) else value, "source": source}
            for name, (value, source) in self.values.items()
        }
        return {"about": self.about, "beyond": self.beyond, "values": values}
