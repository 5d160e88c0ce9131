"""Score tables from evaluation rows: one row per task, method, settings and budget, with 95 % intervals."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
from pydantic import JsonValue

from kvlab.common.intervals import Interval, Kind
from kvlab.core import FULL, Budget, format_spec
from kvlab.evaluation.results.summary import mean_over_tasks, over_tasks, summarize, with_measures
from kvlab.evaluation.scoring.metrics import higher_is_better
from kvlab.views.base.provenance import PAPER, PRESET

PROMPT = ["task", "difficulty", "content", "length", "depth", "index", "seed"]


def score_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per task, arm and requested budget with 95 % intervals, in row order.

    Columns: task, metric, higher (larger is better), arm (method and options), method, options (JSON), budget, asked
    (budget as text), prompts (count), and with `_low` and `_high`: score, difference to the full cache on the same
    prompts, kept (slots per token), slots and seconds.
    """
    table = with_names(summarize(rows, ["task"])).rename(columns={"samples": "prompts"})
    return table.assign(higher=table["metric"].map(higher_is_better))[["task", "metric", "higher", *NAMES, *MEASURED]]


NAMES = ["arm", "method", "options", "budget", "asked"]
MEASURES = ("score", "difference", "kept", "slots", "seconds")
MEASURED = ["prompts", *(f"{name}{bound}" for name in MEASURES for bound in ("", "_low", "_high"))]


def with_names(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the columns `NAMES` to evaluation rows or their summary."""
    methods = rows["method"]
    options = rows["hyper_parameters"]
    # Thousands of rows have a few dozen arms and budgets.
    pairs = list(zip(methods, options, strict=True))
    arms = {(method, text): format_spec(method, without_preset(json.loads(text))) for method, text in set(pairs)}
    compressed = rows.loc[methods != FULL.method, ["budget", "budget_unit"]]
    amounts = list(compressed.itertuples(index=False, name=None))
    words = {amount: Budget.from_number(*amount).description for amount in set(amounts)}
    asked = pd.Series("all", rows.index, dtype=str)
    asked[methods != FULL.method] = [words[amount] for amount in amounts]
    return rows.assign(arm=[arms[pair] for pair in pairs], options=options, asked=asked)


def without_preset(options: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The options without the paper's preset, which all arms of an experiment share."""
    return {name: value for name, value in options.items() if not (name.endswith(PRESET) and value == PAPER)}


def option_column(table: pd.DataFrame, option: str) -> pd.DataFrame:
    """Add one option's value per row, as text; the full cache is left out."""
    compressed = table[table["method"] != FULL.method]
    return compressed.assign(
        **{option: [str(json.loads(text).get(option, "default")) for text in compressed["options"]]}
    )


def means_over_tasks(rows: pd.DataFrame, table: pd.DataFrame, by: Sequence[str] = NAMES) -> pd.DataFrame:
    """One row per group of `by`: means over tasks with 95 % intervals, of the rows shown in `table`.

    `table` is the rows' score table or a part of it, and `by` names columns of it; tasks where less is better are left
    out if there are others. Columns: `by`, `MEASURED`, tasks.
    """
    better = table[table["higher"]] if table["higher"].any() else table
    shown = better[list(dict.fromkeys(["task", *NAMES, *by]))].drop_duplicates()
    rows = with_names(with_measures(rows)).merge(shown, on=["task", *NAMES])
    return over_tasks(rows, by)[[*by, *MEASURED, "tasks"]]


def shared_by_all_arms(table: pd.DataFrame) -> pd.DataFrame:
    """The compressed rows of tasks and budgets that all arms have; else of tasks that all arms have; else all."""
    compressed = table[table["method"] != FULL.method]
    for cell in (["task", "asked"], ["task"]):
        everywhere = compressed.groupby(cell)["arm"].transform("nunique") == compressed["arm"].nunique()
        if everywhere.any():
            return compressed[everywhere]
    return compressed


def shared_budgets(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the budgets that most arms have, and the full cache's."""
    compressed = table[table["method"] != FULL.method]
    count = compressed.groupby("asked")["arm"].nunique()
    return table[table["asked"].isin(count[count == count.max()].index) | (table["method"] == FULL.method)]


def full_score(rows: pd.DataFrame) -> Interval | None:
    """The full cache's mean score over the tasks where higher is better; None if there are none."""
    full = rows[(rows["method"] == FULL.method) & rows["metric"].map(higher_is_better)]
    return mean_over_tasks(full, "score", "score") if len(full) else None


def paired_gap(
    first: pd.DataFrame, second: pd.DataFrame, keys: Sequence[str], column: str = "score"
) -> Interval | None:
    """Mean over tasks of `column` of `first` minus `second` on equal `keys`; None if none are equal."""
    both = first[[*keys, column]].merge(second[[*keys, column]], on=list(keys), suffixes=("", "_other"))
    if both.empty:
        return None
    kind: Kind = "difference" if column == "score" else "any"
    found = mean_over_tasks(both.assign(gap=both[column] - both[f"{column}_other"]), "gap", kind)
    is_equal = bool((both[column] == both[f"{column}_other"]).all())
    return replace(found, level=float(both[column].mean())) if is_equal else found
