# mypy: disable-error-code="attr-defined"
"""Functions compiled for a CPU, and walks over heads that the threads share which torch keeps ready for its own work.

numba's threads are OpenMP's, as torch's are. On Linux torch makes its OpenMP known to the whole process, numba's calls
end there, and the heads are walked by threads that wait for work anyway. Elsewhere two copies of OpenMP would keep
threads each, which take the processors from one another (and refuse to start on macOS), so one thread walks alone.
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

# Sums may be taken in any order; what is no number and what is infinite keeps its meaning.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}
SLOTS_EACH = 512  # for each thread: a team takes as long to come together as one thread for fewer

# What others call is compiled into them; what was compiled as a whole is kept beside the source or in the user's cache.
part = njit(**OPTIONS)
alone = njit(cache=True, **OPTIONS)

_now = threading.local()  # `threads` that numba was told to take, which it knows for each thread apart


class Walk:
    """A function of a table's arrays `keys`, `values` (R, S, d), `position` (R, S) and others, compiled for both.

    It goes over heads by `numba.prange`, and what it does about one head concerns no other.
    """

    def __init__(self, walk: Callable[..., None]) -> None:
        assert isinstance(walk, FunctionType)
        self._alone = alone(walk)
        again = FunctionType(walk.__code__, walk.__globals__, walk.__name__, walk.__defaults__, walk.__closure__)
        again.__module__, again.__qualname__ = walk.__module__, f"{walk.__qualname__}_in_team"  # kept by this name
        self._in_team = njit(cache=True, parallel=True, **OPTIONS)(again)

    def __call__(self, keys: np.ndarray, values: np.ndarray, position: np.ndarray, *others: object) -> None:
        """Walk over all heads."""
        threads = torch.get_num_threads()  # all or one: OpenMP ends threads that a smaller team leaves over
        shared = threads > 1 and len(position) > 1 and position.size >= SLOTS_EACH * threads and has_team()
        self.walk(threads if shared else 1, keys, values, position, *others)

    def walk(self, threads: int, *given: object) -> None:
        """With so many threads; more than one only where there is a team."""
        if threads == 1:
            self._alone(*given)
            return
        if getattr(_now, "threads", None) != threads:
            numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
            _now.threads = threads
        self._in_team(*given)


@lru_cache
def has_team() -> bool:
    """Whether numba's threads are torch's, as told above. Asked for the first time it says so to numba."""
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        return False
    if numba.config.THREADING_LAYER not in ("default", "omp"):
        return False  # somebody has chosen
    try:
        import_module("numba.np.ufunc.omppool")  # wants an OpenMP of the system
    except ImportError:
        return False
    numba.config.THREADING_LAYER = "omp"
    return True
