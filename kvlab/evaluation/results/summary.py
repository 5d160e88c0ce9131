"""Summarise an evaluation: one row per task, length, method and budget, and means over tasks. Torch-free.

Every mean over prompts has its 95 % interval in columns of its name with `_low` and `_high`.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvlab.common.intervals import Interval, Kind, mean_intervals, mean_over_groups
from kvlab.core.choice import FULL
from kvlab.evaluation.scoring.metrics import higher_is_better

CHUNK = "prefill_chunk"
MODEL = ["question_aware", "model", "model_digest", CHUNK]
PROMPT = ["task", "difficulty", "content", "length", "depth", "index", "seed", *MODEL]
PROMPT_NUMBER = "prompt_number"  # numbers rows of equal `PROMPT`, for as long as a mean is made
METHOD = ["method", "hyper_parameters", "budget", "budget_unit", "question_aware", "model", CHUNK]
MEASURES = (
    "score", "difference", "slots", "kept", "live_bytes", "bytes_read", "bytes", "seconds", "prompt_seconds",
    "bits_per_byte", "kl", "top1_agreement",
)  # fmt: skip
# Of one task only: over tasks they would be means of the few that have them.
OF_TASK = (*MEASURES, "hidden_own", "hidden_merged", "unreachable", "consensus", "answer_tokens", "loops", "joules")
LATER = (
    "prompt_seconds", "hidden_own", "hidden_merged", "unreachable", "consensus", "answer_tokens", "loop_tokens",
    "joules",
)  # fmt: skip
SCORES: dict[str, Kind] = {"score": "score", "difference": "difference"}
BOUNDS = ("", "_low", "_high")  # ends of the columns of a mean and its interval


def summarize(rows: pd.DataFrame, by: Sequence[str] = ("task", "difficulty", "length")) -> pd.DataFrame:
    """One row per group of `by` and method: every measure's mean over the prompts with its 95 % interval.

    Columns: `by`, method, hyper_parameters, budget, budget_unit, question_aware, model, prefill_chunk (null: none),
    metric, samples (prompts), pairs (prompts with a full-cache result), and with `_low` and `_high` score, difference
    to the full cache on the same prompts (null without pairs), slots (mean per KV head), kept (slots
    over tokens seen), live_bytes, bytes_read (by a decode step), bytes (live over the full cache's on the same prompt),
    seconds, prompt_seconds, and for text tasks bits_per_byte, kl, top1_agreement, for tracked statements hidden_own,
    hidden_merged, unreachable and consensus (`kvlab.evaluation.scoring.survival`), for generated answers answer_tokens
    and loops (share of answers that end in a loop), and joules where the device has a counter.
    """
    needed = list(dict.fromkeys([*by, *METHOD, "metric", *OF_TASK]))  # a group takes every column apart
    groups = _as_numbers(with_measures(rows), OF_TASK)[needed].groupby([*by, *METHOD], dropna=False, sort=False)
    lines: list[dict[str, object]] = []
    for values, group in groups:
        names = dict(zip([*by, *METHOD], values, strict=True))
        counts = {"samples": len(group), "pairs": int(group["difference"].notna().sum())}
        measures = _measures(group, OF_TASK, scores=bool(group["metric"].map(higher_is_better).all()))
        if names["method"] == FULL.method:  # its difference to itself is 0
            measures |= dict.fromkeys(("difference_low", "difference_high"), measures["difference"])
        lines.append({**names, "metric": group["metric"].iloc[0], **counts, **measures})
    return pd.DataFrame(lines)


def over_tasks(rows: pd.DataFrame, by: Sequence[str], measures: Sequence[str] = MEASURES) -> pd.DataFrame:
    """One row per group of `by`: every measure's mean over the tasks, with the 95 % interval for these tasks.

    `rows` as from `with_measures`. A prompt with several rows in a group, as with several budgets, counts once with
    their mean, since they are not independent samples. Prompts are resampled within tasks. Columns: `by`, the measures
    with `_low` and `_high`, and the numbers of prompts and tasks.
    """
    lines = []
    needed = [PROMPT_NUMBER, *(name for name in dict.fromkeys([*by, "task", "metric", *measures]) if name in rows)]
    for names, group in _numbered(rows, measures)[needed].groupby(list(by), dropna=False, sort=False):
        prompts = group.groupby([PROMPT_NUMBER, "task"], sort=False)[list(measures)].mean().reset_index()
        named = dict(zip(by, names, strict=True))
        counts = {"prompts": len(prompts), "tasks": prompts["task"].nunique()}
        # Scores are in [0, 1] with higher better, not a distance such as KL.
        scores = "metric" in group and bool(group["metric"].map(higher_is_better).all())
        lines.append(named | counts | _measures(prompts, measures, prompts["task"].tolist(), scores))
    bounded = [name + bound for name in measures for bound in BOUNDS]
    return pd.DataFrame(lines, columns=[*by, "prompts", "tasks", *bounded])


def mean_over_tasks(rows: pd.DataFrame, column: str, kind: Kind = "any") -> Interval:
    """Mean over tasks of one column with its 95 % interval, as `over_tasks`.

    `kind`: whether the column holds scores (higher is better) or differences of scores.
    """
    prompts = _numbered(rows, (column,)).groupby([PROMPT_NUMBER, "task"], sort=False)[[column]].mean().reset_index()
    return mean_over_groups(prompts[column].tolist(), prompts["task"].tolist(), kind=kind)


def with_measures(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the columns difference (to the full cache's score), kept, bytes and loops to the rows."""
    if CHUNK not in rows:  # rows from before chunked prefill
        rows = rows.assign(**{CHUNK: np.nan})
    rows = rows.assign(**{name: np.nan for name in LATER if name not in rows})  # rows from before they were measured
    rows = rows.assign(bytes_read=read_bytes(rows))
    named = {"score": "base", "live_bytes": "base_bytes"}
    base = rows.loc[rows["method"] == FULL.method, [*PROMPT, *named]].rename(columns=named)
    paired = rows.merge(base.drop_duplicates(PROMPT), on=PROMPT, how="left")
    size = pd.to_numeric(paired["live_bytes"]) / pd.to_numeric(paired["base_bytes"])
    kept = paired["slots"] / paired["logical_tokens"]
    looped = pd.to_numeric(paired["loop_tokens"])
    loops = (looped > 0).astype(float).where(looped.notna())
    return paired.assign(difference=paired["score"] - paired["base"], kept=kept, bytes=size, loops=loops)


def read_bytes(frame: pd.DataFrame) -> pd.Series:
    """Bytes that a decode step reads; those held in rows without sparse attention and in older ones, which read all."""
    held = pd.to_numeric(frame["live_bytes"])
    return pd.to_numeric(frame["bytes_read"]).fillna(held) if "bytes_read" in frame else held


def _as_numbers(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The rows with these columns as float64, NaN where missing."""
    numbers = {name: pd.to_numeric(rows[name]).to_numpy(np.float64, na_value=np.nan) for name in columns}
    return rows.assign(**numbers)


def _numbered(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The rows with these columns as float64, and with the number of each row's prompt as `PROMPT_NUMBER`."""
    prompt = [name for name in PROMPT if name in rows]
    number = rows.groupby(prompt, dropna=False, sort=False).ngroup()
    return _as_numbers(rows, columns).assign(**{PROMPT_NUMBER: number})


def _measures(
    frame: pd.DataFrame, measures: Sequence[str], groups: Sequence[object] | None = None, scores: bool = False
) -> dict[str, float | None]:
    """Every measure's mean, low and high; None if no prompt has it."""
    kinds: list[Kind] = [SCORES.get(name, "any") if scores else "any" for name in measures]
    numbers = frame[list(measures)].to_numpy(np.float64)
    values: list[float | None] = []
    for interval in mean_intervals(numbers, groups, kinds=kinds):
        values += [interval.mean, interval.low, interval.high] if interval else [None, None, None]
    return dict(zip([name + bound for name in measures for bound in BOUNDS], values, strict=True))
