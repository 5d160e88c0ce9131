"""Some thousand runs in one folder: the list, the search and the index made again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.dashboard_speed.kept import write_kept
from tests.torture.table import Row

REPEATS = 20


def listed(root: Path, count: int) -> list[Row]:
    """Rows of the list and of making its index again; the runs are written where the folder is empty."""
    from kvlab.trace.catalogue import comparisons_with, list_comparisons, list_runs
    from kvlab.trace.index import FILE

    root.mkdir(parents=True, exist_ok=True)
    there = sum(1 for _ in root.glob("*/run.json"))
    if not there:
        write_kept(root, count)
        there = count

    def again() -> object:
        (root / FILE).unlink(missing_ok=True)
        return list_runs(root)

    return [
        _timed(f"list of {there:,} runs", REPEATS, lambda: list_comparisons(root), there, root),
        _timed(f"search in {there:,} runs", REPEATS, lambda: comparisons_with(root, ["the"]), there, root),
        _timed(f"index of {there:,} runs made again", 2, again, there, root),
    ]


def _timed(part: str, repeats: int, work: Callable[[], object], count: int, root: Path) -> Row:
    from kvlab.trace.catalogue import list_runs

    row = Row(part, attempts=repeats)
    for _ in range(repeats):
        begun = time.monotonic()
        work()
        row.seconds.append(time.monotonic() - begun)
    row.lost = count - len(list_runs(root))
    return row
