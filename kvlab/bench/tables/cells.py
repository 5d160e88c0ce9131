"""Format numbers for the tables. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from kvlab.bench.rows import Row
from kvlab.requests.budget import Budget

MISSING = "–"
MEGA = 1e6  # bytes are shown in megabytes


def reductions(row: Row) -> str:
    """Effects of --scale, --shorten and --compress-every in parentheses; empty without any."""
    parts = [f"1/{row.scale} of the layers and width"] if row.scale > 1 else []
    parts += [f"1/{row.shorten} of the tokens"] if row.shorten > 1 else []
    parts += [f"deciding every {row.compress_every} steps"] if row.compress_every > 1 else []
    return f" ({', '.join(parts)})" if parts else ""


def budget(row: Row) -> str:
    """Such as `5 %` or `18000 slots`."""
    if row.budget is None:
        return MISSING
    return Budget.of(row.budget, row.budget_unit or "fraction").words


def tokens(row: Row) -> str:
    """Context, and generated tokens if any: `4,096+128`."""
    if not row.context:
        return MISSING
    return f"{row.context:,}" + (f"+{row.new_tokens:,}" if row.new_tokens else "")


def unit(row: Row) -> str:
    """The unit as the end of a column title."""
    return f", {'MB' if row.unit == 'bytes' else row.unit}" if row.unit else ""


def number(value: float | None, unit: str) -> str:
    """A number in its unit, bytes as MB; a dash where it is missing."""
    if value is None:
        return MISSING
    return f"{value / MEGA:,.2f}" if unit == "bytes" else plain(value)


def plain(value: float) -> str:
    """Four significant digits, or an integer from 1000 on."""
    if pd.isna(value):
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def repeated(counts: Iterable[int]) -> str:
    """The statistic of the numbers, such as `medians of 3 repeats` (of a synthetic load, not of prompts)."""
    known = sorted({int(count) for count in counts if count})
    if not known or known == [1]:
        return "one measurement"
    most = f"{known[0]} to {known[-1]}" if len(known) > 1 else str(known[0])
    return f"medians of {most} repeats"
