"""Means over prompts with intervals, for verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from kvlab.common.formatting import mean_words
from kvlab.common.intervals import Interval, mean_interval
from kvlab.results.verdict import Basis


def over_prompts(frame: pd.DataFrame, column: str, prompt: str = "prompt") -> Interval | None:
    """Mean of a column with its interval over prompts, after averaging heads, steps and merges within a prompt."""
    values = frame.groupby(prompt, sort=False)[column].mean().dropna() if len(frame) else pd.Series(dtype=float)
    return interval_of(values.to_list())


def interval_of(values: Sequence[float]) -> Interval | None:
    """Mean of one value per prompt with its 95 % interval; None if there is none."""
    known = [float(value) for value in values if np.isfinite(value)]
    return mean_interval(known) if known else None


def basis_of(frame: pd.DataFrame, merges: int = 0) -> Basis:
    """Prompts and (layer, head) pairs of an evidence frame (`kvlab.atlas.evidence`)."""
    place = [name for name in ("layer", "head") if name in frame]
    heads = len(frame[place].drop_duplicates()) if len(place) == 2 and len(frame) else 0
    return Basis(frame["prompt"].nunique() if len(frame) else 0, heads, merges)


def mean_text(found: Interval | None, show: Callable[[float], str]) -> str:
    """A mean over prompts as `0.25 (0.1 to 0.4, n = 20)`."""
    return "not measured" if found is None else mean_words(found.mean, found.low, found.high, found.n, show)
