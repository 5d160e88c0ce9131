"""The device of a benchmark: work timed on it, medians of repeats, its free memory and its peak rates."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil
import torch

from kvlab.common.formatting import format_bytes
from kvlab.core.cache.settings import synchronize

HOST_SHARE = 0.8  # of the free host memory: the kernel kills a process that takes all of it
COPY_BYTES = {"cuda": 2**30, "cpu": 2**28}
MATRIX_SIDE = {"cuda": 8192, "cpu": 1024}
REPEATS = 7


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


def seconds_of(work: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """Wall-clock seconds of one or several calls, with the device synchronised before and after."""
    synchronize(device)
    begun = time.perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    return time.perf_counter() - begun


def free_bytes(device: torch.device) -> int:
    """Memory that a benchmark may still allocate on this device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(HOST_SHARE * psutil.virtual_memory().available)


def check_room(needed: int, device: torch.device) -> None:
    """Raise MemoryError if the host would run out; a GPU reports that itself and is not checked."""
    if device.type != "cuda" and needed > (free := free_bytes(device)):
        raise MemoryError(f"needs {format_bytes(needed)}, {format_bytes(free)} may be used")


@dataclass(frozen=True)
class Peaks:
    """Peak rates of a device, the best of several measurements."""

    bytes_per_second: float  # read plus written, of a plain copy
    flops_per_second: float  # of a square matrix product in the model's dtype


def measure_peaks(device: torch.device, dtype: torch.dtype) -> Peaks:
    """The device's copy bandwidth and its matrix product rate for `dtype`."""
    size = min(COPY_BYTES.get(device.type, 2**27), max(2**20, free_bytes(device) // 8))
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    copied = min(seconds_of(lambda: target.copy_(source), device) for _ in range(REPEATS))
    side = MATRIX_SIDE.get(device.type, 1024)
    left = torch.randn(side, side, device=device, dtype=dtype)
    multiplied = min(seconds_of(lambda: left @ left, device) for _ in range(REPEATS))
    return Peaks(2 * size / copied, 2 * side**3 / multiplied)
