"""Score tables of evaluation rows: one row per task, method, settings and budget, with 95 % intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

import pandas as pd
from pydantic import JsonValue

from kvlab.common.intervals import Interval, Kind
from kvlab.evaluate.results.summary import mean_over_tasks, over_tasks, summarize, with_measures
from kvlab.evaluate.scoring.metrics import higher_is_better
from kvlab.requests.budget import Budget
from kvlab.requests.method_spec import format_spec
from kvlab.results.provenance import PAPER, PRESET

FULL = "full"
PROMPT = ["task", "difficulty", "content", "length", "depth", "index", "seed"]


def score_table(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a task, arm and budget asked for, with 95 % intervals; in the order of the rows.

    Columns: task, metric, higher (a larger score is better), arm (method and options), method, options (JSON), budget,
    asked (as people say it), prompts (how many), and with `_low` and `_high` score, difference to the full cache on the
    same prompts, kept (slots over tokens, really used), slots and seconds.
    """
    table = named(summarize(rows, ["task"])).rename(columns={"samples": "prompts"})
    return table.assign(higher=table["metric"].map(higher_is_better))[["task", "metric", "higher", *NAMES, *MEASURED]]


NAMES = ["arm", "method", "options", "budget", "asked"]
MEASURED = ["prompts"] + [
    f"{name}{bound}"
    for name in ("score", "difference", "kept", "slots", "seconds")
    for bound in ("", "_low", "_high")
]  # fmt: skip


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of an evaluation, or of its summary, with the columns `NAMES`."""
    methods, options = rows["method"], rows["hyper_parameters"]
    arm = [_arm_words(*of_row) for of_row in zip(methods, options, strict=True)]
    asked = [
        "all" if method == FULL else _asked_words(budget, unit)
        for method, budget, unit in zip(methods, rows["budget"], rows["budget_unit"], strict=True)
    ]
    return rows.assign(arm=arm, options=options, asked=asked)


@lru_cache(maxsize=1024)  # thousands of rows have a few dozen
def _arm_words(method: str, options: str) -> str:
    return format_spec(method, without_preset(_values(options)))


@lru_cache(maxsize=1024)
def _asked_words(budget: float, unit: str) -> str:
    return Budget.of(budget, unit).words


def without_preset(options: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The options without the papers' presets, which all arms of an experiment have alike."""
    return {name: value for name, value in options.items() if not (name.endswith(PRESET) and value == PAPER)}


def option_column(table: pd.DataFrame, option: str) -> pd.DataFrame:
    """The score table with the value of one option beside each row, as text; the full cache is left out."""
    compressed = table[table["method"] != FULL]
    return compressed.assign(**{option: [str(_values(text).get(option, "default")) for text in compressed["options"]]})


def means_over_tasks(rows: pd.DataFrame, table: pd.DataFrame, by: Sequence[str] = NAMES) -> pd.DataFrame:
    """A row a group of `by`: means over the tasks with 95 % intervals, of the rows that `table` shows.

    `table` is the rows' score table or a part of it, and `by` names columns of it; tasks where less is better are left
    out, where there are others. Columns: `by`, `MEASURED`, tasks.
    """
    better = table[table["higher"]] if table["higher"].any() else table
    shown = better[list(dict.fromkeys(["task", *NAMES, *by]))].drop_duplicates()
    rows = named(with_measures(rows)).merge(shown, on=["task", *NAMES])
    return over_tasks(rows, by)[[*by, *MEASURED, "tasks"]]


def where_all_were(table: pd.DataFrame) -> pd.DataFrame:
    """The compressed rows of tasks and budgets that every arm has; else of tasks that every arm has; else all."""
    compressed = table[table["method"] != FULL]
    for cell in (["task", "asked"], ["task"]):
        everywhere = compressed.groupby(cell)["arm"].transform("nunique") == compressed["arm"].nunique()
        if everywhere.any():
            return compressed[everywhere]
    return compressed


def shared_budgets(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the budgets that were asked of most arms; the full cache stays."""
    compressed = table[table["method"] != FULL]
    count = compressed.groupby("asked")["arm"].nunique()
    return table[table["asked"].isin(count[count == count.max()].index) | (table["method"] == FULL)]


def full_score(rows: pd.DataFrame) -> Interval | None:
    """The full cache's mean score over the tasks where higher is better; None where it was asked none."""
    full = rows[(rows["method"] == FULL) & rows["metric"].map(higher_is_better)]
    return mean_over_tasks(full, "score", "score") if len(full) else None


def paired_gap(one: pd.DataFrame, other: pd.DataFrame, keys: Sequence[str], column: str = "score") -> Interval | None:
    """Mean over the tasks of `column` of the rows `one` minus `other` with equal `keys`; None where none is equal."""
    both = one[[*keys, column]].merge(other[[*keys, column]], on=list(keys), suffixes=("", "_other"))
    kind: Kind = "difference" if column == "score" else "any"
    return mean_over_tasks(both.assign(gap=both[column] - both[f"{column}_other"]), "gap", kind) if len(both) else None


def _values(options: str) -> dict[str, JsonValue]:
    return json.loads(options)
