"""Named settings as data: what a paper, or its authors' code, gives each hyper-parameter, and where it says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

DEFAULT = "default"
PAPER = "paper"


@dataclass(frozen=True)
class Preset:
    """One configuration of a method that somebody else published.

    `values` has, for each hyper-parameter the source settles, (value, where it says so: a section, table, equation or
    file). `about` names the source; `beyond` says what of it no hyper-parameter can express.
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
