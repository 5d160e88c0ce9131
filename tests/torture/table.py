"""What came of it: one row a part, one table of all, as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class Row:
    """One line of the table. Seconds are of one attempt; `lost` counts what was saved before and is not there after."""

    part: str
    attempts: int = 0
    exceptions: int = 0
    lost: int = 0
    seconds: list[float] = field(default_factory=list)
    memory: str = ""
    note: str = ""
    faults: list[str] = field(default_factory=list)

    @property
    def cells(self) -> list[str]:
        """As they stand in the table."""
        times = [f"{at(self.seconds, share):.2f}" if self.seconds else "" for share in (0.5, 0.95, 1.0)]
        counts = [f"{count:,}" for count in (self.attempts, self.exceptions, self.lost)]
        return [self.part, *counts, *times, self.memory, self.note]


HEAD = ["part", "attempts", "exceptions", "lost", "p50, s", "p95, s", "worst, s", "memory", ""]


def at(values: Sequence[float], share: float) -> float:
    """The value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def as_markdown(rows: Iterable[Row], about: str) -> str:
    """The table with what it was taken on, and each fault beneath it."""
    rows = list(rows)
    lines = [HEAD, ["---"] * len(HEAD), *(row.cells for row in rows)]
    table = "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)
    faults = [f"- {row.part}: `{fault[:300]}`" for row in rows for fault in row.faults]
    return "\n\n".join([f"# Torture\n\n{about}", table, *(["\n".join(faults)] if faults else [])]) + "\n"


def spread(values: Sequence[float]) -> float:
    """The largest of the values over their median, less one."""
    return max(values) / statistics.median(values) - 1 if values else 0.0
