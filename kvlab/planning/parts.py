"""What takes memory: named parts, and the phases of a comparison that hold some of them at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = Literal["device", "host", "disk"]


@dataclass(frozen=True)
class Part:
    """Bytes of one kind in one place, and in one sentence where they come from."""

    name: str
    place: Place
    bytes: int
    why: str


@dataclass(frozen=True)
class Phase:
    """What lies in memory at the worst moment of one phase."""

    name: str
    parts: tuple[Part, ...]

    def bytes_on(self, place: Place) -> int:
        """Bytes in one place."""
        return sum(part.bytes for part in self.parts if part.place == place)


def largest_of_each(phases: list[Phase]) -> list[Part]:
    """Every kind of part once, as large as it gets in any phase, in the order they come up."""
    found: dict[str, Part] = {}
    for part in (part for phase in phases for part in phase.parts):
        if part.name not in found or part.bytes > found[part.name].bytes:
            found[part.name] = part
    return [part for part in found.values() if part.bytes]
