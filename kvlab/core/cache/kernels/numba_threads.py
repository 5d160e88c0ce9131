# mypy: disable-error-code="attr-defined"
"""numba compilation options, and loops over heads that run on torch's OpenMP threads.

numba's threads are OpenMP threads, as torch's are. On Linux torch's OpenMP library is visible to the whole process, so
numba uses the same threads. Elsewhere two OpenMP copies would compete for the processors (and fail to start on macOS),
so one thread is used.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from types import FunctionType
from typing import Any

import numba
import numpy as np
import torch
from numba import njit

# Sums may be reordered; NaN and infinity keep their meaning.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}
SLOTS_EACH = 512  # per thread: below that, starting a team takes longer than the work

# `part` is inlined into callers; `alone` is cached on disk.
part = njit(**OPTIONS)
alone = njit(cache=True, **OPTIONS)

_now = threading.local()  # the thread count set in numba, which it keeps per thread


class Walk:
    """A function of arrays `keys`, `values` (R, S, d), `position` (R, S) and others, compiled for one and several
    threads.

    It iterates over heads with `numba.prange`; heads are independent.
    """

    def __init__(self, walk: Callable[..., None]) -> None:
        assert isinstance(walk, FunctionType)
        self._alone = alone(walk)
        again = FunctionType(walk.__code__, walk.__globals__, walk.__name__, walk.__defaults__, walk.__closure__)
        again.__module__, again.__qualname__ = walk.__module__, f"{walk.__qualname__}_in_team"  # cache key on disk
        self._in_team = njit(cache=True, parallel=True, **OPTIONS)(again)

    def __call__(self, keys: np.ndarray, values: np.ndarray, position: np.ndarray, *others: object) -> None:
        """Run over all heads."""
        threads = torch.get_num_threads()  # all or one: OpenMP ends the threads that a smaller team does not use
        shared = threads > 1 and len(position) > 1 and position.size >= SLOTS_EACH * threads and has_team()
        self.walk(threads if shared else 1, keys, values, position, *others)

    def walk(self, threads: int, *given: object) -> None:
        """Run with `threads` threads; more than one only if `has_team`."""
        if threads == 1:
            self._alone(*given)
            return
        if getattr(_now, "threads", None) != threads:
            numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
            _now.threads = threads
        self._in_team(*given)


@lru_cache
def has_team() -> bool:
    """Whether numba can use torch's threads (see above); the first call configures numba."""
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        return False
    if numba.config.THREADING_LAYER not in ("default", "omp"):
        return False  # the user has chosen
    try:
        import_module("numba.np.ufunc.omppool")  # needs a system OpenMP
    except ImportError:
        return False
    numba.config.THREADING_LAYER = "omp"
    return True
