"""Published settings of a method, each value with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

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
