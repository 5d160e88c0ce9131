"""Rows as terminal tables and as JSON, and the papers' numbers next to ours. Torch-free."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvlab.bench.rows import Row
from kvlab.common.formatting import MIB
from kvlab.core.budget import Budget

MISSING = "–"


def reductions(row: Row) -> str:
    """Effects of scale, shorten and compress_every in parentheses; empty without any."""
    parts = [f"1/{row.scale} of the layers and width"] if row.scale > 1 else []
    parts += [f"1/{row.shorten} of the tokens"] if row.shorten > 1 else []
    parts += [f"deciding every {row.compress_every} steps"] if row.compress_every > 1 else []
    return f" ({', '.join(parts)})" if parts else ""


def budget(row: Row) -> str:
    """Such as `5 %` or `18000 slots`."""
    if row.budget is None:
        return MISSING
    return Budget.from_number(row.budget, row.budget_unit or "fraction").description


def tokens(row: Row) -> str:
    """Context, and generated tokens if any: `4,096+128`."""
    if not row.context:
        return MISSING
    return f"{row.context:,}" + (f"+{row.new_tokens:,}" if row.new_tokens else "")


def number(value: float | None, unit: str) -> str:
    """A number in its unit, bytes as MiB; a dash where it is missing."""
    if value is None:
        return MISSING
    return f"{value / MIB:,.2f}" if unit == "bytes" else plain(value)


def plain(value: float) -> str:
    """Four significant digits, or an integer from 1000 on."""
    if pd.isna(value):
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def statistic_name(counts: Iterable[int]) -> str:
    """The statistic of the numbers, such as `medians of 3 repeats` (of a synthetic load, not of prompts)."""
    known = sorted({int(count) for count in counts if count})
    if not known or known == [1]:
        return "one measurement"
    most = f"{known[0]} to {known[-1]}" if len(known) > 1 else str(known[0])
    return f"medians of {most} repeats"


def measurement_tables(rows: Sequence[Row]) -> list[Table]:
    """One table per mode and model: each method's measurements and their share of the bound."""
    shown = [row for row in rows if row.figure != "copy bandwidth"]
    tables = []
    for (mode, model, _), group in groupby(shown, key=lambda row: (row.mode, row.model, row.compress_every)):
        draw = memory_table if mode == "memory" else _measurements
        rows_of_mode = list(group)
        table = draw(rows_of_mode)
        table.title = f"{mode}, {model}{reductions(rows_of_mode[0])}"
        table.title_justify = "left"
        first = rows_of_mode[0]
        rates = (row for row in rows if row.figure == "copy bandwidth" and row.device == first.device)
        rate = next(rates, None)
        copied = f"; copies {rate.median:.1f} GB/s" if rate is not None and rate.median is not None else ""
        table.caption = (
            f"{statistic_name(row.repeats for row in rows_of_mode)}, not of prompts; * the full cache of the ratios, "
            f"the best one; {first.device}, {first.dtype}{copied}"
        )
        tables.append(table)
    return tables


def _measurements(rows: Sequence[Row]) -> Table:
    counted = any(row.joules is not None for row in rows)
    columns = (
        "figure",
        "method",
        "kept",
        "batch",
        "tokens",
        "measured",
        "± IQR",
        "bound",
        "of bound",
        "x full",
        "limit",
        "of limit",
        *(["J", "J/token"] if counted else []),
        "",
    )
    table = Table(*columns, box=SIMPLE_HEAD)
    for name in columns[3:-1]:
        table.columns[columns.index(name)].justify = "right"
    for row in rows:
        # Joules of a step or prompt, and of each of its tokens.
        energy = [MISSING, MISSING]
        if row.joules is not None:
            count = row.batch * (row.context if row.mode == "prefill" else 1)
            energy = [plain(row.joules), plain(row.joules / max(count, 1))]
        table.add_row(
            row.figure + (f", {'MiB' if row.unit == 'bytes' else row.unit}" if row.unit else ""),
            row.method + (" *" if row.is_full else ""),
            budget(row),
            str(row.batch or MISSING),
            tokens(row),
            number(row.median, row.unit),
            number(row.iqr, row.unit),
            number(row.bound, row.unit),
            MISSING if row.fraction_of_bound is None else f"{100 * row.fraction_of_bound:.0f} %",
            MISSING if row.ratio_to_full is None else f"{row.ratio_to_full:.3g}",
            *_limit(row, rows),
            *(energy if counted else ()),
            row.note if row.status == "ok" else f"{row.status}: {row.note}",
        )
    return table


def _limit(row: Row, rows: Sequence[Row]) -> tuple[str, str]:
    """Of a decode step or rate: the limit by bytes of its ratio to the full cache, and the share that was reached.

    The limit is the ratio of both bounds, which are the bytes that each step moves.
    """
    same = [one for one in rows if (one.figure, one.batch, one.context) == (row.figure, row.batch, row.context)]
    full = next((one for one in same if one.is_full), None)
    if not row.figure.startswith("decode") or full is None or row.ratio_to_full is None:
        return MISSING, MISSING
    if not full.bound or not row.bound:
        return MISSING, MISSING
    limit = row.bound / full.bound
    reached = limit / row.ratio_to_full if row.unit.startswith("ms") else row.ratio_to_full / limit
    return f"{limit:.3g}", f"{100 * reached:.0f} %"


def paper_table(rows: Sequence[Row], preset: str) -> Table | None:
    """The paper's numbers next to ours, absolute and as ratios to the full cache; None without a paper."""
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
    ours = f"{rows[0].device}, {statistic_name(row.repeats for row in rows)}{reductions(rows[0])}" if rows else MISSING
    table.caption = f"paper's device: {hardware}; ours: {ours}"
    return table


def rows_json(rows: Sequence[Row], path: str) -> str:
    """The rows as one JSON object: `file`, `rows`, and `paper` for a preset that has paper numbers."""
    named = [row.preset for row in rows if row.preset]
    numbers = beside_the_paper(rows, named[0]) if named else pd.DataFrame()
    paper = json.loads(numbers.to_json(orient="records", double_precision=15))
    parsed = ("versions", "hyper_parameters")
    readable = [asdict(row) | {name: json.loads(getattr(row, name)) for name in parsed} for row in rows]
    return json.dumps({"file": path, "rows": readable, "paper": paper}, indent=2)


FIGURES = {
    "logical tokens": "tokens seen",
    "slots held": "slots held",
    "live bytes": "live MiB",
    "allocated bytes": "allocated MiB",
    "peak bytes": "peak MiB",
    "weights and cache": "with weights MiB",
    "allocator: taken by the cache": "allocator MiB",
    "allocator: peak with weights": "allocator peak MiB",
}


def memory_table(rows: Sequence[Row]) -> Table:
    """One line per contender: its figures, and allocated bytes over the full cache's and over live bytes.

    The ratio to live bytes leaves out one block of 64 slots per head, which a table may have free.
    """
    ratios = ("allocated x full", "allocated x live")
    table = Table("method", "kept", "batch", "tokens", *FIGURES.values(), *ratios, "", box=SIMPLE_HEAD)
    for column in table.columns[2:-1]:
        column.justify = "right"
    for _, group in groupby(
        rows, key=lambda row: (row.method, row.hyper_parameters, row.budget, row.batch, row.context)
    ):
        lines = list(group)
        first = lines[0]
        by_figure = {row.figure: row for row in lines}
        figures = [number(row.median, row.unit) if (row := by_figure.get(name)) else MISSING for name in FIGURES]
        allocated = by_figure.get("allocated bytes")
        ratio = MISSING if allocated is None or allocated.ratio_to_full is None else plain(allocated.ratio_to_full)
        failed = "" if allocated is None or allocated.status == "ok" else f"{allocated.status}: {allocated.note}"
        # Allocated bytes over live bytes.
        parts = (allocated, by_figure.get("live bytes"), by_figure.get("one block a head"))
        sizes = [row.median for row in parts if row is not None and row.median is not None]
        over_live = plain(max(sizes[0] - sizes[2], sizes[1]) / sizes[1]) if len(sizes) == 3 and sizes[1] else MISSING
        table.add_row(
            first.method + (" *" if first.is_full else ""),
            budget(first),
            str(first.batch),
            tokens(first),
            *figures,
            ratio,
            over_live,
            failed,
        )
    return table


NUMBERS = Path(__file__).with_name("paper_numbers.csv")
IN_UNIT = {"GB": 1e9}
SETTING = ["preset", "model", "batch", "context", "new_tokens", "figure"]


def paper_numbers(preset: str = "") -> pd.DataFrame:
    """The papers' numbers, all or those of one preset: `value` in `unit`, NaN for out of memory.

    `method` is kvlab's name, `budget` is empty for the full cache, `source` is the paper's table or figure.
    """
    numbers = pd.read_csv(NUMBERS, dtype={"budget": "string"}, keep_default_na=True)
    numbers[["note", "budget"]] = numbers[["note", "budget"]].fillna("")
    return numbers[numbers["preset"] == preset].reset_index(drop=True) if preset else numbers


def beside_the_paper(rows: Sequence[Row], preset: str) -> pd.DataFrame:
    """The preset's paper numbers with `ours` (same unit), and for both the ratio to the full cache at equal batch.

    A setting that was not measured has NaN in `ours` and the reason in `why`.
    """
    numbers = paper_numbers(preset)
    mine = [next((row for row in rows if _is_of(row, number)), None) for number in numbers.itertuples()]
    numbers["ours"] = [
        row.median / IN_UNIT.get(unit, 1.0) if row is not None and row.median is not None else float("nan")
        for row, unit in zip(mine, numbers["unit"], strict=True)
    ]
    numbers["why"] = ["not measured" if row is None else row.note if row.status != "ok" else "" for row in mine]
    for name, column in (("value", "paper_ratio"), ("ours", "our_ratio")):
        full = numbers[numbers["method"] == "full"].set_index(SETTING)[name]
        index = pd.MultiIndex.from_frame(numbers[SETTING])
        numbers[column] = numbers[name].to_numpy() / full.reindex(index).to_numpy()
    measured = [row.ratio_to_full if row is not None else None for row in mine]  # if the paper has no full cache
    numbers["our_ratio"] = numbers["our_ratio"].fillna(pd.Series(measured, dtype="float64"))
    return numbers


def _is_of(row: Row, number: Any) -> bool:
    """Whether a row measures a paper's number: its setting, with the method's defaults or a paper preset."""
    setting = (row.preset, row.model, row.batch, row.asked_context, row.asked_new_tokens, row.figure)
    if setting != tuple(getattr(number, name) for name in SETTING):
        return False
    if number.method == "full":
        return row.is_full
    name, _, settings = row.method.partition(":")
    if name != number.method or ":" in settings or row.budget is None:
        return False
    if settings and not settings.startswith("preset=paper"):
        return False
    budget = float(number.budget)
    return row.budget == (max(1, budget // row.shorten) if row.budget_unit == "slots" else budget)
