"""Named parts of memory, and the phases of a comparison that hold some of them at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = Literal["device", "host", "disk"]


@dataclass(frozen=True)
class Part:
    """Bytes of one kind in one place, and a sentence on where they come from."""

    name: str
    place: Place
    bytes: int
    why: str


@dataclass(frozen=True)
class Phase:
    """Memory at the peak of one phase."""

    name: str
    parts: tuple[Part, ...]

    def bytes_on(self, place: Place) -> int:
        return sum(part.bytes for part in self.parts if part.place == place)


def largest_of_each(phases: list[Phase]) -> list[Part]:
    """Every kind of part once, at its largest, in order of appearance."""
    largest: dict[str, Part] = {}
    for part in (part for phase in phases for part in phase.parts):
        if part.name not in largest or part.bytes > largest[part.name].bytes:
            largest[part.name] = part
    return [part for part in largest.values() if part.bytes]
