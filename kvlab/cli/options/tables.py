"""Print the tables of comparisons and evaluations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import typer
from rich.table import Table

from kvlab.cli.options.part_tables import as_table, frame_of
from kvlab.common.formatting import KIB, ONE_PROMPT, in_range
from kvlab.common.terminal import print_wide

SUMMARY_WIDTH = 120  # a pipe reports 80, which would wrap the intervals

COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "label": ("run", str),
    "verdict": ("answer", str),
    "live_bytes": ("live KiB", lambda value: f"{value / KIB:,.0f}"),
    "bytes_read": ("read KiB a step", lambda value: f"{value / KIB:,.0f}"),
    "unread_mass": ("mass not read", lambda value: f"{100 * value:.1f} %"),
    "live_ratio": ("of full", lambda value: f"{100 * value:.0f} %"),
    "allocated_bytes": ("allocated KiB", lambda value: f"{value / KIB:,.0f}"),
    "speed": ("tokens/s", str),
    "mean_kl": ("KL to full, nats/token", lambda value: f"{value:.4f}"),
    "top1_agreement": ("top-1 agreement", lambda value: f"{100 * value:.0f} %"),
    "first_divergence": ("own text differs at token", lambda value: f"{value:.0f}"),
    "status": ("status", str),
}


OF_READINGS = ("bytes_read", "unread_mass")


def print_batch(cells: pd.DataFrame) -> None:
    """Print a batch (`kvlab.views.frames.repeats.cells`): one line per method and budget."""
    if not cells["n"].any():
        _print_closeness(cells)
        return
    table = Table("run", "n", "right", "share (95 %)", "live KiB", "KL on answer, nats/token", "KL on all", "agreement")
    for row in cells.to_dict("records"):
        size = "–" if pd.isna(row["live_bytes"]) else f"{row['live_bytes'] / KIB:,.0f}"
        means = [_mean(row, name) for name in ("kl_answer", "mean_kl", "top1_agreement")]
        table.add_row(row["label"], str(row["n"]), str(row["right"]), _mean(row, "share", 2), size, *means)
    table.caption = "means over prompts with 95 % intervals; share: prompts with a right answer (Wilson)"
    print_wide(table)


def _print_closeness(cells: pd.DataFrame) -> None:
    """Print a batch of prompts without answers."""
    table = Table("run", "n", "live KiB", "KL to full, nats/token", "agreement")
    for row in cells.assign(n=cells["ended"]).to_dict("records"):
        size = "–" if pd.isna(row["live_bytes"]) else f"{row['live_bytes'] / KIB:,.0f}"
        table.add_row(row["label"], str(row["n"]), size, *(_mean(row, name) for name in ("mean_kl", "top1_agreement")))
    table.caption = "means over prompts with 95 % intervals; no answer was given, so none is marked right"
    print_wide(table)


def _mean(row: dict[Any, Any], name: str, digits: int = 3) -> str:
    if pd.isna(row[name]):
        return "–"
    bounds = row[name], row[f"{name}_low"], row[f"{name}_high"]
    mean, low, high = in_range(*bounds, f"{{:.{digits}f}}".format)
    return mean if row["n"] < 2 else f"{mean} [{low}, {high}]"


def print_headline(frame: pd.DataFrame) -> None:
    """Print one line per run: bytes, speed, closeness to the full cache."""
    reads = "reading" in frame and frame["reading"].ne("").any()
    shown = (name for name in COLUMNS if name in frame and (reads or name not in OF_READINGS))
    columns = {name: COLUMNS[name] for name in shown}  # without an answer there is no verdict
    table = Table(*[title for title, _ in columns.values()], caption=_caption(frame), caption_justify="left")
    for _, row in frame.iterrows():
        cells = [(row[name], show) for name, (_, show) in columns.items()]
        table.add_row(*["–" if pd.isna(value) else show(value) for value, show in cells])
    print_wide(table)


def _caption(frame: pd.DataFrame) -> str:
    tokens = int(frame["mean_tokens"].max()) if len(frame) else 0
    means = f"; KL and agreement: means over {tokens} tokens of its continuation" if tokens else ""
    on = ", ".join(frame["device"].unique()) if len(frame) else ""
    return f"on {on}; {ONE_PROMPT}{means}; for means over prompts with intervals: kvlab eval"


def print_summary(
    rows: pd.DataFrame, notes: list[str], out: Path | None, as_json: bool, by_depth: bool = False
) -> None:
    """Print an evaluation's summary by task, difficulty and length, as a table or as JSON."""
    from kvlab.evaluation.results.summary import summarize
    from kvlab.evaluation.results.table import summary_json, summary_table

    summary = summarize(rows, ["task", "difficulty", "length", *["depth"] * by_depth])
    if as_json:
        typer.echo(summary_json(summary, notes, str(out)))
    else:
        print_wide(summary_table(summary, rows["device"].dropna()), SUMMARY_WIDTH)
        if rows["parts"].notna().any():
            print_wide(as_table(frame_of(rows, "parts"), "parts"), SUMMARY_WIDTH)
