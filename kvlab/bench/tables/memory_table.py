"""What each cache holds, one line a method. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvlab.bench.rows import Row
from kvlab.bench.tables.cells import MISSING, budget, number, plain, tokens

FIGURES = {
    "logical tokens": "tokens seen",
    "slots held": "slots held",
    "live bytes": "live MB",
    "allocated bytes": "allocated MB",
    "peak bytes of one layer's table": "peak of a layer MB",
    "weights and cache": "with weights MB",
    "allocator: taken by the cache": "allocator MB",
    "allocator: peak with weights": "allocator peak MB",
}


def memory_table(rows: Sequence[Row]) -> Table:
    """One line a contender: its figures, and allocated bytes over the full cache's keys and values, and over live ones.

    Over live bytes one block of 64 slots a head is left out, which a table may have free.
    """
    ratios = ("allocated x full", "allocated x live")
    table = Table("method", "kept", "batch", "tokens", *FIGURES.values(), *ratios, "", box=SIMPLE_HEAD)
    for column in table.columns[2:-1]:
        column.justify = "right"
    for _, group in groupby(
        rows, key=lambda row: (row.method, row.hyper_parameters, row.budget, row.batch, row.context)
    ):
        lines = list(group)
        table.add_row(*_cells(lines))
    return table


def _cells(rows: Sequence[Row]) -> list[str]:
    by_figure = {row.figure: row for row in rows}
    first, allocated = rows[0], by_figure.get("allocated bytes")
    shown = [number(row.median, row.unit) if (row := by_figure.get(name)) else MISSING for name in FIGURES]
    ratio = MISSING if allocated is None or allocated.ratio_to_full is None else plain(allocated.ratio_to_full)
    live, block = by_figure.get("live bytes"), by_figure.get("one block a head")
    over_live = _over_live(allocated, live, block)
    failed = "" if allocated is None or allocated.status == "ok" else f"{allocated.status}: {allocated.note}"
    name = first.method + (" *" if first.is_full else "")
    return [name, budget(first), str(first.batch), tokens(first), *shown, ratio, over_live, failed]


def _over_live(allocated: Row | None, live: Row | None, block: Row | None) -> str:
    """What padding wastes: allocated bytes less one block a head, over live bytes."""
    given = [row.median for row in (allocated, live, block) if row is not None and row.median is not None]
    return plain(max(given[0] - given[2], given[1]) / given[1]) if len(given) == 3 and given[1] else MISSING
