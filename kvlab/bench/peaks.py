"""What the device can do at best, measured in the same process: bytes copied and multiplications, per second."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvlab.bench.clock import seconds_of
from kvlab.bench.device_memory import free_bytes

COPY_BYTES = {"cuda": 2**30, "cpu": 2**28}
MATRIX_SIDE = {"cuda": 8192, "cpu": 1024}
REPEATS = 7


@dataclass(frozen=True)
class Peaks:
    """The best of a few tries, which is the ceiling a bound needs."""

    bytes_per_second: float  # read and written, by a plain copy
    flops_per_second: float  # by a square matrix product in the model's type


def measure_peaks(device: torch.device, dtype: torch.dtype) -> Peaks:
    """The device's copy bandwidth and its matrix product rate for `dtype`."""
    return Peaks(_copy_rate(device), _matmul_rate(device, dtype))


def _copy_rate(device: torch.device) -> float:
    size = min(COPY_BYTES.get(device.type, 2**27), max(2**20, free_bytes(device) // 8))
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    best = min(seconds_of(lambda: target.copy_(source), device) for _ in range(REPEATS))
    return 2 * size / best


def _matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    side = MATRIX_SIDE.get(device.type, 1024)
    left = torch.randn(side, side, device=device, dtype=dtype)
    best = min(seconds_of(lambda: left @ left, device) for _ in range(REPEATS))
    return 2 * side**3 / best
