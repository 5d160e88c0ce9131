"""How fast a device is, in about a second: a matrix product, and a copy within its memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from kvlab.engine.forward import synchronize
from kvlab.planning.seconds import Speed

ROWS, COPIED = 4096, 2**28


def measure(device: torch.device) -> Speed:
    """Operations and bytes a second of a product in bfloat16 (float32 on a CPU), best of five."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    left, right = (torch.ones(ROWS, ROWS, dtype=dtype, device=device) for _ in range(2))
    source, target = (torch.ones(COPIED, dtype=torch.uint8, device=device) for _ in range(2))
    product, copy = _best(lambda: left @ right, device), _best(lambda: target.copy_(source), device)
    return Speed(operations=2 * ROWS**3 / product, bytes=2 * COPIED / copy)


def _best(work: Callable[[], object], device: torch.device) -> float:
    taken = []
    for _ in range(6):  # the first is for what is made only once
        synchronize(device)
        begun = time.perf_counter()
        work()
        synchronize(device)
        taken.append(time.perf_counter() - begun)
    return min(taken[1:])
