"""What came of it: one row a part, one table of all, as Markdown."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


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


@dataclass
class Done:
    """The rows of one part, what they were taken on, and how long it took."""

    rows: list[Row]
    about: str = ""
    seconds: float = 0.0


def keep(file: Path, part: str, done: Done) -> dict[str, Done]:
    """Adds a part to those in the file, or puts it in place of its own rows; returns all that are there."""
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    found[part] = asdict(done)
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(found), encoding="utf-8")
    beside.replace(file)
    return {
        name: Done([Row(**row) for row in one["rows"]], one["about"], one["seconds"]) for name, one in found.items()
    }


def as_markdown(parts: Iterable[Done]) -> str:
    """The table with what it was taken on, and each fault beneath it."""
    parts = list(parts)
    rows = [row for part in parts for row in part.rows]
    lines = [HEAD, ["---"] * len(HEAD), *(row.cells for row in rows)]
    table = "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)
    faults = "\n".join(f"- {row.part}: `{fault[:300]}`" for row in rows for fault in row.faults)
    taken = "\n".join(f"- {part.rows[0].part}: {part.about}, took {part.seconds:.0f} s" for part in parts)
    return "\n\n".join(["# Torture: `make torture`", table, *filter(None, [faults, taken])]) + "\n"


def spread(values: Sequence[float]) -> float:
    """The largest of the values over their median, less one."""
    return max(values) / statistics.median(values) - 1 if values else 0.0
