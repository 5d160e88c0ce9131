"""The summary of an evaluation: one line a task, length, method and budget. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvlab.evaluate.bootstrap import mean_interval, paired_difference
from kvlab.evaluate.request import FULL

CHUNK = "prefill_chunk"
MODEL = ["question_aware", "model", "model_digest", CHUNK]
PROMPT = ["task", "difficulty", "content", "length", "depth", "index", "seed", *MODEL]
METHOD = ["method", "hyper_parameters", "budget", "budget_unit", "question_aware", "model", CHUNK]


def summarize(rows: pd.DataFrame, by: Sequence[str] = ("task", "difficulty", "length")) -> pd.DataFrame:
    """Return one row a group of `by` and method: score and paired difference to the full cache with 95 % intervals.

    Columns: `by`, method, hyper_parameters, budget, budget_unit, question_aware, model, prefill_chunk (null: none),
    metric, samples, score, score_low, score_high, difference, difference_low, difference_high (null where the full
    cache has no such prompt), slots (mean per KV head), kept (slots over tokens seen), live_bytes, seconds, and for
    text tasks bits_per_byte, kl, top1_agreement.
    """
    if CHUNK not in rows:  # of before prompts could come in chunks
        rows = rows.assign(**{CHUNK: np.nan})
    paired = _with_base(rows)
    groups = paired.groupby([*by, *METHOD], dropna=False, sort=False)
    lines = [_line(dict(zip([*by, *METHOD], names, strict=True)), group) for names, group in groups]
    return pd.DataFrame(lines)


def _with_base(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the full cache's score on the same prompt beside each."""
    base = rows.loc[rows["method"] == FULL.method, [*PROMPT, "score"]].rename(columns={"score": "base"})
    return rows.merge(base.drop_duplicates(PROMPT), on=PROMPT, how="left")


def _line(names: dict[str, object], group: pd.DataFrame) -> dict[str, object]:
    score = mean_interval(group["score"].to_numpy())
    pairs = group.dropna(subset="base")
    gap = paired_difference(pairs["score"].to_numpy(), pairs["base"].to_numpy()) if len(pairs) else None
    return {
        **names,
        "metric": group["metric"].iloc[0],
        "samples": len(group),
        "score": score.mean,
        "score_low": score.low,
        "score_high": score.high,
        "difference": gap.mean if gap else None,
        "difference_low": gap.low if gap else None,
        "difference_high": gap.high if gap else None,
        "slots": group["slots"].mean(),
        "kept": (group["slots"] / group["logical_tokens"]).mean(),
        "live_bytes": group["live_bytes"].mean(),
        "seconds": group["seconds"].mean(),
        "bits_per_byte": group["bits_per_byte"].mean(),
        "kl": group["kl"].mean(),
        "top1_agreement": group["top1_agreement"].mean(),
    }
