"""The summary of an evaluation: one line a task, length, method and budget, and means over tasks. Torch-free.

Every mean over prompts comes with the bounds of its 95 % interval in columns of its name with `_low` and `_high`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvlab.evaluate.bootstrap import Interval, mean_intervals, mean_over_groups
from kvlab.evaluate.request import FULL

CHUNK = "prefill_chunk"
MODEL = ["question_aware", "model", "model_digest", CHUNK]
PROMPT = ["task", "difficulty", "content", "length", "depth", "index", "seed", *MODEL]
METHOD = ["method", "hyper_parameters", "budget", "budget_unit", "question_aware", "model", CHUNK]
MEASURES = (
    "score", "difference", "slots", "kept", "live_bytes", "seconds", "bits_per_byte", "kl", "top1_agreement",
)  # fmt: skip


def summarize(rows: pd.DataFrame, by: Sequence[str] = ("task", "difficulty", "length")) -> pd.DataFrame:
    """Return one row a group of `by` and method: every measure's mean over the prompts with its 95 % interval.

    Columns: `by`, method, hyper_parameters, budget, budget_unit, question_aware, model, prefill_chunk (null: none),
    metric, samples (prompts), pairs (prompts that the full cache was asked too), and with `_low` and `_high` score,
    difference to the full cache on the same prompts (null where it has none), slots (mean per KV head), kept (slots
    over tokens seen), live_bytes, seconds, and for text tasks bits_per_byte, kl, top1_agreement.
    """
    measured = with_measures(rows)
    groups = measured.groupby([*by, *METHOD], dropna=False, sort=False)
    lines = [_line(dict(zip([*by, *METHOD], names, strict=True)), group) for names, group in groups]
    return pd.DataFrame(lines)


def over_tasks(rows: pd.DataFrame, by: Sequence[str], measures: Sequence[str] = MEASURES) -> pd.DataFrame:
    """Return one row a group of `by`: every measure's mean over the tasks, with the 95 % interval of these tasks.

    `rows` as `with_measures` gives them, where these are the measures. A prompt that stands in several rows of a
    group, as with several budgets, counts once, with their mean: they are no further samples. Prompts are drawn within
    tasks. Columns: `by`, the measures with `_low` and `_high`, prompts and tasks (how many).
    """
    lines = []
    for names, group in rows.groupby(list(by), dropna=False, sort=False):
        prompts = _once_a_prompt(group, measures)
        named = dict(zip(by, names, strict=True))
        counts = {"prompts": len(prompts), "tasks": prompts["task"].nunique()}
        lines.append(named | counts | _measures(prompts, measures, prompts["task"].tolist()))
    return pd.DataFrame(lines, columns=[*by, "prompts", "tasks", *_bounded(measures)])


def mean_over_tasks(rows: pd.DataFrame, column: str) -> Interval:
    """Return the mean over the tasks of one column of the rows with its 95 % interval, as `over_tasks`."""
    prompts = _once_a_prompt(rows, (column,))
    return mean_over_groups(prompts[column].tolist(), prompts["task"].tolist())


def with_measures(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with what is summed up beside each: the difference to the full cache's score, and kept."""
    if CHUNK not in rows:  # of before prompts could come in chunks
        rows = rows.assign(**{CHUNK: np.nan})
    base = rows.loc[rows["method"] == FULL.method, [*PROMPT, "score"]].rename(columns={"score": "base"})
    paired = rows.merge(base.drop_duplicates(PROMPT), on=PROMPT, how="left")
    return paired.assign(difference=paired["score"] - paired["base"], kept=paired["slots"] / paired["logical_tokens"])


def _once_a_prompt(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    prompt = [name for name in PROMPT if name in rows]
    numbers = rows.assign(**{name: pd.to_numeric(rows[name]) for name in columns})
    return numbers.groupby(prompt, dropna=False, sort=False)[list(columns)].mean().reset_index()


def _line(names: dict[str, object], group: pd.DataFrame) -> dict[str, object]:
    counts = {"samples": len(group), "pairs": int(group["difference"].notna().sum())}
    return {**names, "metric": group["metric"].iloc[0], **counts, **_measures(group, MEASURES)}


def _measures(
    frame: pd.DataFrame, measures: Sequence[str], groups: Sequence[object] | None = None
) -> dict[str, float | None]:
    """Every measure's mean, low and high; None where no prompt has it."""
    numbers = np.column_stack([pd.to_numeric(frame[name]).to_numpy(np.float64, na_value=np.nan) for name in measures])
    values: list[float | None] = []
    for interval in mean_intervals(numbers, groups):
        values += [interval.mean, interval.low, interval.high] if interval else [None, None, None]
    return dict(zip(_bounded(measures), values, strict=True))


def _bounded(names: Sequence[str]) -> list[str]:
    return [f"{name}{bound}" for name in names for bound in ("", "_low", "_high")]
