"""Print tables of a prompt's parts (rules, questions, steps) and of reachability, or write them as CSV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast, get_args

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvlab.common.atomic_write import replace_text
from kvlab.common.formatting import in_range
from kvlab.core.choice import FULL
from kvlab.core.errors import UserError
from kvlab.core.method_spec import format_spec
from kvlab.tasks.sample import current_difficulty

Kind = Literal["scores", "parts", "order", "places", "deaths", "reach", "reasoning", "phase"]
BY: dict[str, tuple[str, ...]] = {"parts": ("kind",), "order": ("order",), "places": ("kind", "third")}


def check_kind(name: str) -> Kind:
    """The name of a table; raises UserError for another one."""
    if name not in get_args(Kind):
        raise UserError(f"--of takes {', '.join(get_args(Kind))}, not '{name}'.")
    return cast(Kind, name)


def frame_of(rows: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """The table as a frame; raises UserError if the rows have nothing for it."""
    from kvlab.results.part_tables import deaths, part_table
    from kvlab.results.reachability import phase_table, reachability
    from kvlab.results.reasoning_tables import reasoning_table

    if kind == "reach":
        frame = reachability(rows)
    elif kind == "reasoning":
        frame = reasoning_table(rows)
    elif kind == "phase":
        frame = phase_table(rows)
    else:
        table = part_table(rows, BY.get(kind, ("kind",)))
        frame = deaths(table) if kind == "deaths" else table
    if frame.empty:
        what = {
            "reach": "prompt has tracked evidence",
            "reasoning": "answer was generated and scored",
            "phase": "prompt has a needle whose place was recorded (before November 2026 it was not)",
        }.get(kind, "prompt has rules, questions or steps")
        raise UserError(f"No {what} in these results: evaluate a task such as instructions, or take another --of.")
    return frame


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a frame to FILE.csv; raises UserError for another ending."""
    if path.suffix != ".csv":
        raise UserError(f"{path} cannot be written: name a FILE.csv.")
    replace_text(path, frame.to_csv(index=False))


def as_table(frame: pd.DataFrame, kind: Kind) -> Table:
    """A frame of `frame_of` for a terminal."""
    if kind == "deaths":
        table = Table("task", "part", "method", "full cache", "dies at", "score there", box=SIMPLE_HEAD)
        for line in frame.assign(task=task_names(frame)).to_dict("records"):
            there = "" if pd.isna(line["score"]) else f"{line['score']:.2f}"
            table.add_row(
                line["task"], line["kind"], line["arm"], f"{line['full']:.2f}", line["dies_at"] or "lives", there
            )
        table.caption = "dies at: the largest budget from which on the score is below half of the full cache's"
        return table
    if kind == "reasoning":
        return _reasoning(frame)
    if kind == "phase":
        return _phases(frame)
    return _reach(frame) if kind == "reach" else _parts(frame, BY[kind])


def task_names(frame: pd.DataFrame) -> list[str]:
    """Each line's task with the parameters that differ between lines of that task, such as `instructions:place=end`."""
    known = {text: current_difficulty(text) for text in frame["difficulty"].unique()}
    tasks = frame.groupby("task")["difficulty"].unique()
    names = []
    for task, text in zip(frame["task"], frame["difficulty"], strict=True):
        others = [known[other] for other in tasks[task]]
        differing = {
            name: value for name, value in known[text].items() if any(one.get(name) != value for one in others)
        }
        names.append(format_spec(str(task), differing))
    return names


def _parts(frame: pd.DataFrame, by: tuple[str, ...]) -> Table:
    table = Table("task", *by, "method", "budget", "n", "score (95 %)", "held", "unreachable", "", box=SIMPLE_HEAD)
    frame = frame.assign(task=task_names(frame)).sort_values(by[0], kind="stable")
    for _, group in frame.groupby([*by[:1], "task", "difficulty", "length", *by[1:]], sort=False, dropna=False):
        for line in group.to_dict("records"):
            note = "" if line["informative"] else "not informative"
            if line["method"] == FULL.method and pd.notna(line["unasked"]):
                note = "; ".join(filter(None, [note, f"unasked {line['unasked']:.2f}"]))
            shown = [_mean(line, "score"), _share(line["held"]), _share(line["unreachable"])]
            names = [str(line[name]) for name in ("task", *by, "arm", "asked", "parts")]
            table.add_row(*names, *shown, note)
        table.add_section()
    table.caption = (
        "score: share of parts obeyed or right; held: share of layers and KV heads with a slot of a token, mean; "
        "unreachable: tokens with no slot in any; unasked: obeyed by answers that had no such rule"
    )
    return table


def _reach(frame: pd.DataFrame) -> Table:
    columns = ("task", "method", "budget", "n", "score (95 %)", "own slot", "unreachable", "consensus", "loss", "")
    table = Table(*columns, box=SIMPLE_HEAD)
    frame = frame.assign(task=task_names(frame))
    for _, group in frame.groupby(["task", "difficulty", "length", "arm"], sort=False, dropna=False):
        for line in group.to_dict("records"):
            loss = "" if pd.isna(line["loss"]) else f"{line['loss']:+.3f}"
            names = [str(line[name]) for name in ("task", "arm", "asked", "samples")]
            shares = [_share(line[name]) for name in ("hidden_own", "unreachable", "consensus")]
            table.add_row(*names, _mean(line, "score"), *shares, loss, "cliff" if line["cliff"] else "")
        table.add_section()
    table.caption = (
        "own slot: share of layers and KV heads in which an evidence token has a slot of its own; unreachable: tokens "
        "with no slot in any, also none that they share; consensus: share of heads that hold a reachable token; cliff: "
        "the budget step with the largest loss"
    )
    return table


def _phases(frame: pd.DataFrame) -> Table:
    """One line a method: its lowest and highest phase."""
    columns = (
        "task",
        "method",
        "budget",
        "chunk",
        "n",
        "n a phase",
        "all phases",
        "lowest (95 %)",
        "highest (95 %)",
        "",
    )
    table = Table(*columns, box=SIMPLE_HEAD)
    for (task, arm, asked), group in frame.groupby(["task", "arm", "asked"], sort=False):
        ends = [group.loc[index] for index in (group["score"].idxmin(), group["score"].idxmax())]
        told = [f"{_mean(dict(line), 'score')} at {line['phase']}" for line in ends]
        counts = sorted(group["samples"])
        size = int(group["chunk"].iloc[0])
        n = str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        mean = (group["score"] * group["samples"]).sum() / group["samples"].sum()
        note = f"keeps or reads {size} tokens together" if group["chunked"].all() else "token by token"
        table.add_row(str(task), str(arm), str(asked), str(size), str(sum(counts)), n, f"{mean:.2f}", *told, note)
    table.caption = (
        "share found by the needle's place modulo the chunk, with 95 % intervals; methods without chunks by the "
        "largest chunk of the others, for comparison; --out FILE.csv has every phase"
    )
    return table


def _reasoning(frame: pd.DataFrame) -> Table:
    columns = (
        "task",
        "method",
        "slots at most",
        "n",
        "score (95 %)",
        "tokens",
        "x full",
        "loops",
        "right",
        "tokens if right",
        "if wrong",
        "loops if wrong",
        "",
    )
    table = Table(*columns, box=SIMPLE_HEAD)
    for _, group in frame.assign(task=task_names(frame)).groupby(["task", "length"], sort=False):
        for line in group.to_dict("records"):
            most = line["asked"] if pd.isna(line["most_slots"]) else f"{line['most_slots']:.0f}"
            lengths = [_number(line[name]) for name in ("tokens_right", "tokens_wrong")]
            shares = [_share(line[name]) for name in ("longer", "loops")]
            table.add_row(
                line["task"],
                line["arm"],
                most,
                str(line["samples"]),
                _mean(line, "score"),
                _number(line["tokens"]),
                *shares,
                str(line["right"]),
                *lengths,
                _share(line["loops_wrong"]),
                "" if line["informative"] else "not informative",
            )
        table.add_section()
    table.caption = (
        "slots at most: budget and the buffer of generated tokens beside it; x full: tokens of the answer over the "
        "full cache's on the same prompt; loops: answers that end in a loop; right: answers with a score of 1; not "
        "informative: the full cache scores below 0.5"
    )
    return table


def _number(value: Any) -> str:
    return "–" if pd.isna(value) else f"{value:.0f}"


def _mean(line: dict[Any, Any], name: str) -> str:
    show: Callable[[float], str] = "{:.2f}".format
    mean, low, high = in_range(line[name], line[f"{name}_low"], line[f"{name}_high"], show)
    return f"{mean} [{low}, {high}]"


def _share(value: Any) -> str:
    return "–" if pd.isna(value) else f"{value:.2f}"
