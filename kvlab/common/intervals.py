"""Confidence intervals of means and of means over groups: Wilson's for scores of 0 and 1, else a percentile bootstrap.

The bootstrap is Efron's (1979). It has no width if all samples are equal, so scores of 0 or 1 use Wilson's interval
(1927), paired differences of such scores Newcombe's combination (1998), and means over groups are combined alike (Zou
and Donner 2008). Torch-free.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Literal

import numpy as np

RESAMPLES = 4000
MOST_PICKS = 250_000  # samples drawn at once: two megabytes, of which there are three
LEVEL = 0.95
# Content of a column. Scores and differences that are not whole numbers are bootstrapped as any other.
Kind = Literal["any", "score", "difference"]
WHOLE: dict[Kind, tuple[int, ...]] = {"any": (), "score": (0, 1), "difference": (-1, 0, 1)}
Bounds = tuple[float, float, float]  # mean, low, high


@dataclass(frozen=True)
class Interval:
    """A mean, the bounds of its interval, and the number of samples; bounds of a single sample mean nothing.

    `samples` are the values behind it, for figures; empty if they were not kept. `level` is the mean of both
    sides of a paired difference that is 0 in every sample; else None.
    """

    mean: float
    low: float
    high: float
    n: int
    samples: tuple[float, ...] = field(default=(), repr=False, compare=False)
    level: float | None = field(default=None, repr=False, compare=False)


def correlation_interval(correlation: float, n: int, level: float = LEVEL) -> tuple[float, float]:
    """The interval of a rank correlation of `n` independent pairs; all values up to 3 pairs.

    Fisher's transformation with the variance of Fieller, Hartley and Pearson (1957), 1.06 / (n - 3).
    """
    if n <= 3:
        return -1.0, 1.0
    width = NormalDist().inv_cdf((1 + level) / 2) * np.sqrt(1.06 / (n - 3))
    middle = np.arctanh(np.clip(correlation, -1 + 1e-12, 1 - 1e-12))
    return float(np.tanh(middle - width)), float(np.tanh(middle + width))


def rank_correlation(
    first: Sequence[float], second: Sequence[float], seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> Interval | None:
    """Spearman's rank correlation of pairs, ties with their mean rank; None where one side has a single value.

    The interval is a percentile bootstrap over pairs; draws in which one side has a single value are left out.
    """
    pairs = np.array([first, second], dtype=np.float64)
    count = pairs.shape[1]
    picks = np.random.default_rng(seed).integers(count, size=(resamples, count))
    with np.errstate(invalid="ignore"):
        found = _spearman(*pairs[:, None])[0]
        drawn = _spearman(*pairs[:, picks])
    if np.isnan(found):
        return None
    low, high = np.nanquantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(found), float(low), float(high), count)


def _spearman(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Of every row of both (rows, pairs); NaN for a constant one."""
    # Twice the mean rank, less a constant: how many are smaller, minus how many are larger.
    x, y = (np.sign(values[:, :, None] - values[:, None, :]).sum(axis=2) for values in (first, second))
    return (x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))


def mean_intervals(
    table: np.ndarray,
    groups: Sequence[object] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    kinds: Sequence[Kind] | None = None,
) -> list[Interval | None]:
    """The interval of every column of `table` (samples, columns); None for a column of NaN only.

    `kinds` gives the content of every column; without it all are bootstrapped.

    Samples are drawn with replacement, the same for all columns; NaN are left out. With `groups` (one label per sample)
    the mean is that of the groups' means, and samples are drawn within each group: groups (tasks) are chosen, not
    sampled. Groups of a single sample are drawn from one another (collapsed strata, Cochran, Sampling Techniques).
    """
    data = np.asarray(table, dtype=np.float64)
    labels = np.zeros(len(data), int) if groups is None else np.unique([str(g) for g in groups], return_inverse=True)[1]
    known = ~np.isnan(data)
    whole = known.all(axis=0)
    result: list[Interval | None] = [None] * data.shape[1]
    for columns in (np.flatnonzero(whole), *np.flatnonzero(~whole)[:, None]):
        rows = known[:, columns].all(axis=1)
        if rows.any() and len(columns):
            present = data[rows][:, columns]
            parts = [present[labels[rows] == label] for label in np.unique(labels[rows])]
            centre = np.mean([part.mean(axis=0) for part in parts], axis=0)
            random = np.random.default_rng(seed)
            drawn = [groups * _drawn_means(part, random, resamples) for part, groups in _strata(parts)]
            bounds = np.quantile(np.sum(drawn, axis=0) / len(parts), [(1 - level) / 2, (1 + level) / 2], axis=0)
            for column, mean, low, high in zip(columns, centre, *bounds, strict=True):
                result[column] = Interval(float(mean), float(low), float(high), len(present))
    for column, kind in enumerate(kinds or ()):
        values = data[known[:, column], column]
        if len(values) and np.isin(values, WHOLE[kind]).all():
            result[column] = _of_counts(values, labels[known[:, column]], kind, level)
    return result


def wilson(hits: float, count: int, level: float = LEVEL) -> Bounds:
    """(share, low, high) of `hits` among `count` samples: Wilson's score interval without correction."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = hits / count
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * (share * (1 - share) / count + (z / (2 * count)) ** 2) ** 0.5
    return share, min(max(centre - half, 0.0), share), max(min(centre + half, 1.0), share)


def share_interval(hits: int, count: int, level: float = LEVEL) -> Interval:
    """`wilson` as an interval; raises ValueError without samples."""
    if count < 1:
        raise ValueError("a share needs at least one sample")
    return Interval(*wilson(hits, count, level), count)


def _of_counts(values: np.ndarray, labels: np.ndarray, kind: Kind, level: float) -> Interval:
    """The mean over the groups of 0/1 scores or of their differences; groups of one sample are pooled."""
    groups = [values[labels == label] for label in np.unique(labels)]
    strata = _strata(groups)
    parts = [
        _difference(part, level) if kind == "difference" else wilson(float(part.sum()), len(part), level)
        for part, _ in strata
    ]
    weighted = [(bounds, times / len(groups)) for bounds, (_, times) in zip(parts, strata, strict=True)]
    mean = sum(weight * centre for (centre, *_), weight in weighted)
    below = sum((weight * (centre - low)) ** 2 for (centre, low, _), weight in weighted) ** 0.5
    above = sum((weight * (high - centre)) ** 2 for (centre, _, high), weight in weighted) ** 0.5
    return Interval(float(mean), float(mean - below), float(mean + above), len(values))


def _strata(groups: Sequence[np.ndarray]) -> list[tuple[np.ndarray, int]]:
    """Each group's samples with weight 1, and the groups of one sample pooled, weighted by their number."""
    single = [group for group in groups if len(group) == 1]
    pooled = [(np.concatenate(single), len(single))] if single else []
    return [*((group, 1) for group in groups if len(group) > 1), *pooled]


def _difference(values: np.ndarray, level: float) -> Bounds:
    """Gains minus losses: two mutually exclusive, hence correlated, shares of the same samples."""
    gains, gains_low, gains_high = wilson(float((values > 0).sum()), len(values), level)
    losses, losses_low, losses_high = wilson(float((values < 0).sum()), len(values), level)
    both = gains * losses
    together = -((both / ((1 - gains) * (1 - losses))) ** 0.5) if both else 0.0
    sides = (gains - gains_low, losses_high - losses), (gains_high - gains, losses - losses_low)
    below, above = ((one**2 + other**2 - 2 * together * one * other) ** 0.5 for one, other in sides)
    return gains - losses, max(gains - losses - below, -1.0), min(gains - losses + above, 1.0)


def _drawn_means(data: np.ndarray, random: np.random.Generator, resamples: int) -> np.ndarray:
    """Means (resamples, columns) of as many samples as there are, drawn with replacement."""
    count = len(data)
    at_once = max(1, MOST_PICKS // count)
    means = []
    for begun in range(0, resamples, at_once):
        rows = min(at_once, resamples - begun)
        picks = random.integers(count, size=(rows, count)) + count * np.arange(rows)[:, None]
        times = np.bincount(picks.ravel(), minlength=rows * count).reshape(rows, count)  # how often each was drawn
        means.append(times @ data)
    return np.concatenate(means) / count


def pairs_interval(table: np.ndarray, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL) -> Interval:
    """The mean of a symmetric `table` (samples, samples) over all pairs of different samples, with its interval.

    Samples are drawn with replacement, and pairs of a sample with itself are left out. `n` counts the samples; with two
    samples the bounds mean nothing. Raises ValueError below two.
    """
    count = len(table)
    if count < 2:
        raise ValueError("a pair needs two samples")
    apart = np.where(np.eye(count, dtype=bool), 0.0, table)
    times = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    pairs = count**2 - (times**2).sum(axis=1)
    drawn = ((times @ apart) * times).sum(axis=1)[pairs > 0] / pairs[pairs > 0]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    samples = tuple(apart[np.triu_indices(count, 1)].tolist())
    return Interval(float(apart.sum() / (count * (count - 1))), float(low), float(high), count, samples)


def mean_interval(
    values: Sequence[float], seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL, kind: Kind = "any"
) -> Interval:
    """The mean of the values with its interval, as `mean_intervals`; raises ValueError without values."""
    return mean_over_groups(values, None, seed, resamples, level, kind)


def mean_over_groups(
    values: Sequence[float],
    groups: Sequence[object] | None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    kind: Kind = "any",
) -> Interval:
    """The mean of the groups' means with its interval, as `mean_intervals`; raises ValueError without values."""
    column = np.asarray(values, dtype=np.float64)[:, None]
    (interval,) = mean_intervals(column, groups, seed, resamples, level, [kind])
    if interval is None:
        raise ValueError("a mean needs at least one value")
    return replace(interval, samples=tuple(column[~np.isnan(column)].tolist()))
