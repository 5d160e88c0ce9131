"""Percentile bootstrap intervals of a mean (Efron 1979), and of a mean over groups. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with the bounds of its interval and how many samples it is over; of one sample the bounds say nothing."""

    mean: float
    low: float
    high: float
    n: int


def mean_intervals(
    table: np.ndarray,
    groups: Sequence[object] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> list[Interval | None]:
    """Return the interval of every column of `table` (samples, columns); None of a column that is all NaN.

    Samples are drawn with replacement, the same for all columns; a NaN is left out and does not count. With `groups`
    (one label a sample) the mean is that of the groups' means, and samples are drawn within each group: the groups,
    such as tasks, are chosen and not a sample of any. Groups of a single sample are drawn from one another (collapsed
    strata, as in Cochran's Sampling Techniques), as nothing else tells how much they would vary.
    """
    data = np.asarray(table, dtype=np.float64)
    labels = np.zeros(len(data), int) if groups is None else np.unique([str(g) for g in groups], return_inverse=True)[1]
    known = ~np.isnan(data)
    whole = known.all(axis=0)
    found: list[Interval | None] = [None] * data.shape[1]
    for columns in (np.flatnonzero(whole), *np.flatnonzero(~whole)[:, None]):
        rows = known[:, columns].all(axis=1)
        if rows.any() and len(columns):
            intervals = _intervals(data[rows][:, columns], labels[rows], seed, resamples, level)
            for column, interval in zip(columns, intervals, strict=True):
                found[column] = interval
    return found


def _intervals(data: np.ndarray, labels: np.ndarray, seed: int, resamples: int, level: float) -> list[Interval]:
    random = np.random.default_rng(seed)
    parts = [data[labels == label] for label in np.unique(labels)]
    centre = np.mean([part.mean(axis=0) for part in parts], axis=0)
    single = [part for part in parts if len(part) == 1]
    strata = [(part, 1) for part in parts if len(part) > 1] + (
        [(np.concatenate(single), len(single))] if single else []
    )
    drawn = np.sum([groups * _drawn_means(part, random, resamples) for part, groups in strata], axis=0) / len(parts)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return [Interval(float(m), float(a), float(b), len(data)) for m, a, b in zip(centre, low, high, strict=True)]


def _drawn_means(data: np.ndarray, random: np.random.Generator, resamples: int) -> np.ndarray:
    """Means (resamples, columns) of as many samples as there are, drawn with replacement."""
    count = len(data)
    picks = random.integers(count, size=(resamples, count)) + count * np.arange(resamples)[:, None]
    times = np.bincount(picks.ravel(), minlength=resamples * count).reshape(resamples, count)
    return times @ data / count


def pairs_interval(table: np.ndarray, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL) -> Interval:
    """Return the mean of a symmetric `table` (samples, samples) over all pairs of different samples, with its interval.

    Samples are drawn with replacement; a pair of a sample with itself, which draws make, is left out. `n` counts the
    samples. Of two samples there is one pair, and the bounds say nothing. Raises ValueError below two.
    """
    count = len(table)
    if count < 2:
        raise ValueError("a pair needs two samples")
    apart = np.where(np.eye(count, dtype=bool), 0.0, table)
    times = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    pairs = count**2 - (times**2).sum(axis=1)
    drawn = ((times @ apart) * times).sum(axis=1)[pairs > 0] / pairs[pairs > 0]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(apart.sum() / (count * (count - 1))), float(low), float(high), count)


def mean_interval(values: Sequence[float], seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL) -> Interval:
    """Return the mean of the values with its percentile bootstrap interval; raises ValueError where there is none."""
    return mean_over_groups(values, None, seed, resamples, level)


def mean_over_groups(
    values: Sequence[float],
    groups: Sequence[object] | None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Interval:
    """Return the mean of the groups' means with its interval, as `mean_intervals`; raises ValueError without values."""
    column = np.asarray(values, dtype=np.float64)[:, None]
    (found,) = mean_intervals(column, groups, seed, resamples, level)
    if found is None:
        raise ValueError("a mean needs at least one value")
    return found


def paired_difference(values: Sequence[float], base: Sequence[float], seed: int = 0) -> Interval:
    """Return the mean of (value - base) over the same samples with its interval: pairs are drawn together."""
    gaps = np.asarray(values, dtype=np.float64) - np.asarray(base, dtype=np.float64)
    return mean_interval(gaps.tolist(), seed)
