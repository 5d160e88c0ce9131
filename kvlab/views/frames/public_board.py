"""Rows of a public board beside kvlab's: the same RULER tasks, at the same shares of the cache kept."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kvlab.common.formatting import join_words, model_title
from kvlab.common.intervals import mean_over_groups, rank_correlation
from kvlab.core.assets import asset_path
from kvlab.core.choice import FULL
from kvlab.core.errors import UserError
from kvlab.core.method_spec import format_spec

SHIPPED = "board"
NEEDED = ("model", "press_name", "query_aware", "configured_ratio", "achieved_ratio")
NO_TASKS = (*NEEDED, "pretty_name", "score_macro13", "press_init_command", "n")
NO_PRESS = "no_press"
LEAST_FULL_SCORE = 0.5  # of the full cache: below it, the model cannot do the task
LEAST_METHODS = 4  # of three, an interval of a rank correlation says nothing
NEAR = 0.005  # shares that are the same
ZERO_LINES = ("random", "streaming_llm")


@dataclass(frozen=True)
class Board:
    """A board's runs: model, press, label, aware (question in sight), asked and kept (shares), n (prompts of a task),
    note, and the score in each of the `tasks` from 0 to 1.
    """

    rows: pd.DataFrame
    tasks: tuple[str, ...]
    source: str


def read_board(name: str) -> Board:
    """The shipped board, or a FILE.csv of its form with a column n; raises UserError for another file."""
    if name == SHIPPED:
        facts = _facts()
        table = pd.read_csv(asset_path("board/kvpress.csv")).assign(n=facts["prompts"])
        board = _board(table, SHIPPED, facts["source"])
        notes = _fallbacks(table, facts["tokens"])
        return Board(board.rows.assign(note=board.rows["note"].where(notes == "", notes)), board.tasks, board.source)
    path = Path(name)
    if not path.is_file():
        raise UserError(f"There is no board {name!r}: name {SHIPPED}, which ships with kvlab, or a FILE.csv.")
    try:
        table = pd.read_csv(path)
    except (ValueError, OSError) as error:  # pandas' errors of parsing are ValueErrors
        raise UserError(f"{path} cannot be read as CSV: {str(error).splitlines()[0]}.") from error
    return _board(table, str(path), path.name)


@cache
def _facts() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _board(table: pd.DataFrame, name: str, source: str) -> Board:
    if lacking := [column for column in NEEDED if column not in table]:
        raise UserError(
            f"{name} lacks {join_words(lacking)}: a board has the columns {', '.join(NEEDED)}, n and tasks."
        )
    if "n" not in table or table["n"].isna().any():
        raise UserError(f"{name} has rows without n: add a column n, the prompts behind each score.")
    tasks = [str(column) for column in table if column not in NO_TASKS]
    try:
        numbers = table[["configured_ratio", "achieved_ratio", "n", *tasks]].astype(float)
        aware = table["query_aware"].astype(str).str.lower().map({"true": True, "false": False})
    except ValueError as error:
        raise UserError(f"{name} has a value that is no number: {error}.") from error
    if aware.isna().any():
        raise UserError(f"{name} has a query_aware that is neither True nor False.")
    kept = 1 - numbers[["configured_ratio", "achieved_ratio"]]
    rows = pd.DataFrame(
        {
            "model": table["model"].astype(str).str.split("/").str[-1],
            "press": table["press_name"].astype(str),
            "label": table.get("pretty_name", table["press_name"]).astype(str),
            "aware": aware.astype(bool),
            "asked": kept["configured_ratio"],
            "kept": kept["achieved_ratio"],
            "n": numbers["n"].astype(int),
        }
    )
    differs = (rows["kept"] - rows["asked"]).abs() > NEAR
    holds = [f"holds {kept:.0%} where {asked:.1%} was asked" for kept, asked in zip(rows.kept, rows.asked, strict=True)]
    return Board(rows.assign(note=np.where(differs, holds, ""), **numbers[tasks] / 100), tuple(tasks), source)


def _fallbacks(table: pd.DataFrame, tokens: int) -> pd.Series:
    """A note on runs of PyramidKV in which kvpress gives each layer the same budget, as SnapKV does.

    It does so if the last layer would get fewer slots than the window: kept tokens / beta < window
    (`get_layer_budget` of kvpress' pyramidkv_press.py).
    """
    numbers = table["press_init_command"].astype(str).str.extract(r"window_size=(\d+).*beta=(\d+)").astype(float)
    least = numbers[0] * numbers[1]
    falls_back = (table["press_name"] == "pyramidkv") & (tokens * (1 - table["configured_ratio"]) < least)
    return pd.Series(np.where(falls_back, [f"ran SnapKV: fewer than {slots:,.0f} tokens kept" for slots in least], ""))


def beside_board(rows: pd.DataFrame, board: Board) -> pd.DataFrame:
    """Both sides' scores, means over the board's tasks that the models behind `rows` can do.

    Columns: series (model, and of kvlab's rows the tokens of a prompt), is_board, press ("" for a method that the board
    does not have), label, arm (of kvlab's rows the method with its options), aware, asked and kept (shares of the
    cache), score with low and high (kvlab's 95 % interval; the board publishes means), n (prompts), tasks (count) and
    note. The board's rows are of the same question (in sight or not) as kvlab's.

    Raises UserError if no task is in common.
    """
    named = rows.assign(task=rows["task"].str.replace(r"^ruler[_/]", "", regex=True))
    named = named[named["task"].isin(board.tasks)]
    if named.empty:
        wanted = ", ".join(f"ruler_{task}" for task in board.tasks[:3])
        raise UserError(
            f"These results have no task of the board: evaluate some, such as `kvlab eval --tasks {wanted}`."
        )
    full = named[named["method"] == FULL.method]
    able = full.groupby(["model", "length", "task"])["score"].mean() >= LEAST_FULL_SCORE
    tasks = [task for task in board.tasks if task in able.index.get_level_values("task") and able[:, :, task].all()]
    if not tasks:
        raise UserError(
            f"The full cache scores at least {LEAST_FULL_SCORE:g} in none of these tasks: take tasks that the model "
            f"can do, or a longer evaluation, to hold methods against a board."
        )
    named = named[named["task"].isin(tasks) & ((named["budget_unit"] == "fraction") | (named["method"] == FULL.method))]
    ours = _cells(named, len(tasks))
    theirs = board.rows[board.rows["aware"].isin(ours["aware"].unique()) | (board.rows["press"] == NO_PRESS)]
    found = theirs[["press", "label", "aware", "asked", "kept", "note"]].assign(
        series=theirs["model"],
        is_board=True,
        arm="",
        score=theirs[tasks].mean(axis=1),
        n=theirs["n"] * len(tasks),
        tasks=len(tasks),
    )
    labels = dict(zip(board.rows["press"], board.rows["label"], strict=True))
    ours["label"] = [labels.get(press, arm) for press, arm in zip(ours["press"], ours["arm"], strict=True)]
    return pd.concat([ours, found], ignore_index=True)


def _cells(rows: pd.DataFrame, every: int) -> pd.DataFrame:
    """kvlab's side of `beside_board`; a note where a cell has not `every` task."""
    presses = _facts()["presses"]
    lines = []
    by = ["model", "length", "method", "hyper_parameters", "budget", "question_aware"]
    for (model, length, method, options, budget, aware), cell in rows.groupby(by, sort=False):
        arm = format_spec(method, json.loads(options or "{}"))
        is_full = method == FULL.method
        known = [press for spec, press in presses.items() if arm == spec or arm.startswith(f"{spec}:")]
        interval = mean_over_groups(cell["score"].tolist(), cell["task"].tolist(), kind="score")
        count = cell["task"].nunique()
        lines.append(
            {
                "series": f"{model_title(model)}, {length:,} tokens",
                "is_board": False,
                "press": NO_PRESS if is_full else (known or [method.replace("-", "_")])[0],
                "arm": arm,
                "aware": aware,
                "asked": 1.0 if is_full else budget,
                "kept": (cell["slots"] / cell["logical_tokens"]).mean(),
                "score": interval.mean,
                "low": interval.low,
                "high": interval.high,
                "n": interval.n,
                "tasks": count,
                "note": "" if count == every else f"{count} of {every} tasks",
            }
        )
    return pd.DataFrame(lines)


def agreements(frame: pd.DataFrame) -> pd.DataFrame:
    """Rank correlations of the methods' scores between every two models, at each share of the cache.

    Columns: aware, asked, first, second, ceiling (both are the board's: what can be asked of others), rho with low and
    high (bootstrap over methods), methods (count), why ("" or the sentence why there is none). The ceiling is of the
    methods that kvlab's rows have too, where they are enough. The board's notes are kept in: a run that fell back has a
    rank as well.
    """
    whole = frame["tasks"] == frame["tasks"].max()
    known = frame[whole & (frame["press"] != NO_PRESS)].assign(asked=frame["asked"].round(3))
    known = known.drop_duplicates(["series", "aware", "asked", "press"])
    lines = []
    for (aware, asked), cell in known.groupby(["aware", "asked"], sort=True):
        table = cell.pivot(index="press", columns="series", values="score")
        boards = [name for name in table if cell.loc[cell["series"] == name, "is_board"].all()]
        others = [name for name in table if name not in boards]
        shared = table.dropna()
        for first, second in [*combinations(boards, 2), *((own, other) for own in others for other in boards)]:
            is_ceiling = first in boards
            pairs = shared if is_ceiling and len(shared) >= LEAST_METHODS else table[[first, second]].dropna()
            found = None
            why = (
                f"{len(pairs)} methods in common are too few for a rank correlation: evaluate {LEAST_METHODS} or more."
            )
            if len(pairs) >= LEAST_METHODS:
                found = rank_correlation(pairs[first].tolist(), pairs[second].tolist())
                why = "" if found else "All methods score the same, which ranks none: take another budget or task."
            bounds = (found.mean, found.low, found.high) if found else (np.nan, np.nan, np.nan)
            lines.append((aware, asked, first, second, is_ceiling, *bounds, len(pairs), why))
    columns = ["aware", "asked", "first", "second", "ceiling", "rho", "low", "high", "methods", "why"]
    return pd.DataFrame(lines, columns=columns).sort_values(["aware", "asked"], ascending=[True, False], kind="stable")
