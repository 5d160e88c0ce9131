"""Numbers over prompts, which verdicts rest on: the mean of one value a prompt with its interval, and how many."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from kvlab.common.formatting import mean_words
from kvlab.common.intervals import Interval, mean_interval
from kvlab.results.verdict import Basis


def over_prompts(frame: pd.DataFrame, column: str, prompt: str = "prompt") -> Interval | None:
    """The mean of a column with its interval over prompts: heads, steps and merges of a prompt are averaged first."""
    values = frame.groupby(prompt, sort=False)[column].mean().dropna() if len(frame) else pd.Series(dtype=float)
    return interval_of(values.to_list())


def interval_of(values: Sequence[float]) -> Interval | None:
    """The mean of one value a prompt with its 95 % interval; None where there is none."""
    known = [float(value) for value in values if np.isfinite(value)]
    return mean_interval(known) if known else None


def basis_of(frame: pd.DataFrame, merges: int = 0) -> Basis:
    """Prompts and (layer, head) pairs of an evidence frame (`kvlab.atlas.evidence`)."""
    place = [name for name in ("layer", "head") if name in frame]
    heads = len(frame[place].drop_duplicates()) if len(place) == 2 and len(frame) else 0
    return Basis(frame["prompt"].nunique() if len(frame) else 0, heads, merges)


def words_of(found: Interval | None, show: Callable[[float], str]) -> str:
    """A mean over prompts as `0.25 (0.1 to 0.4, n = 20)`."""
    return "not measured" if found is None else mean_words(found.mean, found.low, found.high, found.n, show)
