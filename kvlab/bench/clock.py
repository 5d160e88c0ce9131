"""Time work with the device synchronised; summarise repeats by median and interquartile range."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kvlab.cache.settings import synchronize


@dataclass(frozen=True)
class Spread:
    """Median and interquartile range of repeated measurements."""

    median: float
    iqr: float
    repeats: int


def spread(samples: Sequence[float]) -> Spread:
    """Median and interquartile range of `samples` (at least one); 0 for a single sample."""
    if len(samples) == 1:
        return Spread(samples[0], 0.0, 1)
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Spread(statistics.median(samples), high - low, len(samples))


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Wall-clock seconds of a call, with the device synchronised before and after."""
    synchronize(device)
    begun = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - begun
