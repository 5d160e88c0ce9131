"""Format the summary as a terminal table and as JSON."""

import json
from collections.abc import Iterable
from itertools import zip_longest

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvlab.common.formatting import ONE_PROMPT, in_range, model_title
from kvlab.core import Budget, MethodChoice
from kvlab.evaluation.results.rows import ANY_LENGTH
from kvlab.evaluation.scoring.metrics import higher_is_better, packages


def summary_table(summary: pd.DataFrame, devices: Iterable[str] = ()) -> Table:
    """The summary for a terminal: one section per task, length and depth, the full cache first in each.

    `devices` are those its rows were measured on.
    """
    timed = "prompt_seconds" in summary and bool(summary["prompt_seconds"].notna().any())
    counted = "joules" in summary and bool(summary["joules"].notna().any())
    scores = [
        "score (95 %)",
        "minus full (95 %)",
        *(["prompt s"] if timed else []),
        *(["J", "J/token"] if counted else []),
    ]
    table = Table("task, length, metric", "method", "kept (95 %)", "bytes", "n", *scores, box=SIMPLE_HEAD)
    # What was measured and how, what columns mean, and on which devices.
    aware = {True: "compressed with the question visible", False: "compressed without the question"}
    notes = [", ".join(map(model_title, summary["model"].unique()))]
    notes.append(", ".join(aware[bool(mode)] for mode in summary["question_aware"].unique()))
    notes += [f"prompts in chunks of {chunk:,.0f} tokens" for chunk in summary["prefill_chunk"].dropna().unique()]
    notes += [scored] if (scored := packages(summary["metric"])) else []
    notes.append("kept: live slots over tokens seen, mean over KV heads, with its interval if at least 1 %")
    notes.append("bytes: live bytes over the full cache's, metadata and scales counted")
    if timed:
        notes.append("prompt s: time to read and compress the prompt, including a second reading")
    if counted:
        notes.append("J: energy of the whole device by its counter, shared among the caches of a pass by their seconds")
        notes.append("J/token: over the answer's tokens, the prompt's reading included")
    if on := ", ".join(dict.fromkeys(devices)):
        notes.append(f"on {on}")
    table.caption = "; ".join(notes)
    by = [name for name in ("task", "difficulty", "length", "depth") if name in summary]
    for _, group in summary.groupby(by, sort=False, dropna=False):
        first = group.iloc[0]
        metric = str(first["metric"])
        depth = first.get("depth")
        values = [f"{name} {value}" for name, value in json.loads(str(first["difficulty"])).items()]
        heads = [
            str(first["task"]),
            *([f"  {', '.join(values)}"] if values else []),
            f"  {first['length']} tokens" if first["length"] != ANY_LENGTH else "  own lengths",
            *([f"  depth {depth:g}"] if pd.notna(depth) else []),
            f"  {metric}" + ("" if higher_is_better(metric) else ", lower is better"),
        ]
        for head, line in zip_longest(heads, (line for _, line in group.iterrows())):
            table.add_row(head or "", *(_cells(line, timed, counted) if line is not None else ()))
        table.add_section()
    return table


def _cells(line: pd.Series, timed: bool, counted: bool) -> list[str]:
    """Label, share kept, bytes, number of prompts, scores, and if asked for seconds of the prompt and joules."""
    is_full = line["method"] == "full"
    label = "full"
    if not is_full:
        budget = Budget.from_number(line["budget"], line["budget_unit"]).amount
        settings = json.loads(line["hyper_parameters"])
        label = MethodChoice(method=line["method"], budget=budget, hyper_parameters=settings).label
    # The share of tokens kept has its interval if that differs after rounding.
    bounds = 100 * line["kept"], 100 * line["kept_low"], 100 * line["kept_high"]
    mean, low, high = in_range(*bounds, "{:.0f}".format)
    cells = [
        label,
        f"{mean} %" if low == high else f"{mean} [{low}, {high}] %",
        "" if pd.isna(line["bytes"]) else f"{100 * line['bytes']:.0f} %",
        str(line["samples"]),
        _interval(line, "score", ".3f"),
        "" if is_full else _interval(line, "difference", ".3f", "+", count="pairs"),
    ]
    # Seconds until a prompt was compressed, joules of a prompt and of a generated token: empty where not measured.
    seconds = line.get("prompt_seconds")
    joules = line.get("joules")
    tokens = line.get("answer_tokens")
    if timed:
        cells.append("" if pd.isna(seconds) else f"{seconds:.2g}")
    if counted:
        cells.append("" if pd.isna(joules) else f"{joules:.3g}")
        cells.append("" if pd.isna(joules) or pd.isna(tokens) or not tokens else f"{joules / tokens:.3g}")
    return cells


def _interval(line: pd.Series, name: str, digits: str, sign: str = "", count: str = "samples") -> str:
    """A mean with its interval, and n if it differs from the line's; one prompt has no interval."""
    mean, low, high = (line[f"{name}{bound}"] for bound in ("", "_low", "_high"))
    if pd.isna(mean):
        return ""
    if line[count] == 1:
        return f"{mean:{sign}{digits}}, {ONE_PROMPT}"
    of_fewer = f", n {line[count]}" if line[count] != line["samples"] else ""
    middle, least, most = in_range(mean, low, high, lambda value: f"{value:{sign}{digits}}")
    return f"{middle} [{least}, {most}]{of_fewer}"


def summary_json(summary: pd.DataFrame, notes: list[str], out: str) -> str:
    """The summary as one JSON object: `out`, `notes`, and `summary` with one object per line."""
    lines = json.loads(summary.to_json(orient="records", double_precision=15))
    for line in lines:
        line["difficulty"] = json.loads(line["difficulty"])
        line["hyper_parameters"] = json.loads(line["hyper_parameters"])
    return json.dumps({"out": out, "notes": notes, "summary": lines}, indent=2, ensure_ascii=False)
