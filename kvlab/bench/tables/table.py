"""Rows as tables for a terminal, and as JSON. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvlab.bench.rows import Row
from kvlab.bench.tables.cells import MISSING, budget, made_smaller, number, plain, repeated, tokens, unit
from kvlab.bench.tables.memory_table import memory_table
from kvlab.bench.tables.paper import beside_the_paper


def measurement_tables(rows: Sequence[Row]) -> list[Table]:
    """One table a mode and model: what was measured of each method, and how near that is to its bound."""
    shown = [row for row in rows if row.figure != "copy bandwidth" and row.mode != "bar"]
    tables = []
    for (mode, model, _), group in groupby(shown, key=lambda row: (row.mode, row.model, row.compress_every)):
        draw = memory_table if mode == "memory" else _measurements
        own = list(group)
        table = draw(own)
        table.title, table.title_justify = f"{mode}, {model}{made_smaller(own[0])}", "left"
        table.caption = _caption(own, rows)
        tables.append(table)
    return tables


def _measurements(rows: Sequence[Row]) -> Table:
    columns = ("figure", "method", "kept", "batch", "tokens", "measured", "± IQR", "bound", "of bound", "x full", "")
    table = Table(*columns, box=SIMPLE_HEAD)
    for name in columns[3:10]:
        table.columns[columns.index(name)].justify = "right"
    for row in rows:
        table.add_row(
            row.figure + unit(row),
            row.method + (" *" if row.is_full else ""),
            budget(row),
            str(row.batch or MISSING),
            tokens(row),
            number(row.median, row.unit),
            number(row.iqr, row.unit),
            number(row.bound, row.unit),
            MISSING if row.fraction_of_bound is None else f"{100 * row.fraction_of_bound:.0f} %",
            MISSING if row.ratio_to_full is None else f"{row.ratio_to_full:.3g}",
            row.note if row.status == "ok" else f"{row.status}: {row.note}",
        )
    return table


def paper_table(rows: Sequence[Row], preset: str) -> Table | None:
    """The paper's numbers beside ours, absolute and as ratios to the full cache; None for a preset without a paper."""
    numbers = beside_the_paper(rows, preset) if preset else pd.DataFrame()
    if numbers.empty:
        return None
    columns = ("figure", "method", "kept", "batch", "tokens", "paper", "ours", "paper x full", "our x full", "")
    title = f"{numbers['paper'].iloc[0]}, {', '.join(numbers['source'].unique())}: theirs and ours"
    table = Table(*columns, title=title, box=SIMPLE_HEAD, title_justify="left")
    for name in columns[3:9]:
        table.columns[columns.index(name)].justify = "right"
    for _, line in numbers.iterrows():
        new = f"+{line['new_tokens']:,}" if line["new_tokens"] else ""
        table.add_row(
            f"{line['figure']}, {line['unit']}",
            f"{line['method']} ({line['model'].removeprefix('shape:')})",
            line["budget"] or MISSING,
            str(line["batch"]),
            f"{line['context']:,}{new}",
            plain(line["value"]),
            plain(line["ours"]),
            plain(line["paper_ratio"]),
            plain(line["our_ratio"]),
            "; ".join(part for part in (line["note"], line["why"]) if part),
        )
    hardware = ", ".join(numbers["hardware"].unique())
    ours = f"{rows[0].device}, {repeated(row.repeats for row in rows)}{_smaller_note(rows)}" if rows else MISSING
    table.caption = f"paper's device: {hardware}; ours: {ours}"
    return table


def bar_table(rows: Sequence[Row]) -> Table | None:
    """The bars, met or not; None where no row is one."""
    bars = [row for row in rows if row.mode == "bar"]
    if not bars:
        return None
    table = Table("bar", "method", "batch", "tokens", "figure", "", title="bars", box=SIMPLE_HEAD, title_justify="left")
    for row in bars:
        figure = MISSING if row.median is None else f"{row.median:.3g}"
        table.add_row(row.figure, row.method, str(row.batch or MISSING), tokens(row), figure, row.note)
    smaller = _smaller_note([replace(bars[0], compress_every=1)])  # bars say it themselves
    table.caption = f"{repeated(row.repeats for row in bars)}, not of prompts; {bars[0].device}{smaller}"
    return table


def rows_json(rows: Sequence[Row], path: str) -> str:
    """The rows as one JSON object: `file`, `rows`, and `paper` for a preset that has paper numbers."""
    named = [row.preset for row in rows if row.preset]
    numbers = beside_the_paper(rows, named[0]) if named else pd.DataFrame()
    paper = json.loads(numbers.to_json(orient="records", double_precision=15))
    return json.dumps({"file": path, "rows": [_readable(row) for row in rows], "paper": paper}, indent=2)


def _readable(row: Row) -> dict[str, Any]:
    values = asdict(row)
    return values | {name: json.loads(values[name]) for name in ("versions", "hyper_parameters")}


def _caption(own: Sequence[Row], rows: Sequence[Row]) -> str:
    row, over = own[0], repeated(row.repeats for row in own)
    rate = next((r for r in rows if r.figure == "copy bandwidth" and r.device == row.device), None)
    copied = f"; copies {rate.median:.1f} GB/s" if rate is not None and rate.median is not None else ""
    return f"{over}, not of prompts; * the full cache of the ratios, the best one; {row.device}, {row.dtype}{copied}"


def _smaller_note(rows: Sequence[Row]) -> str:
    return made_smaller(rows[0]) if rows else ""
