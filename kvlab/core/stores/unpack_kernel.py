"""Levels of packed codes in one compiled loop on a CPU, if `numba` is installed; torch needs several passes.

For 3 heads of 400 slots and 64 channels 35 to 43 us, torch 99 us (4 bits) to 360 us (6 bits); one thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

SWITCH = "KVLAB_KERNELS"  # environment variable; "off": no kernels of kvlab's own, here and in other packages
Unpack = Callable[[Tensor, int, int, Tensor], Tensor]

log = logging.getLogger(__name__)


@lru_cache
def unpack_kernel() -> Unpack | None:
    """A function of packed codes (..., bytes), bits, count and levels (2^bits,) float32 that returns (..., count)
    float32; None if numba is missing, does not work here, or is switched off.
    """
    if os.environ.get(SWITCH) == "off" or find_spec("numba") is None:
        return None
    try:
        loop = _compiled_loop()
        loop(np.zeros((1, 3), np.uint8), 3, np.zeros(8, np.float32), np.empty((1, 8), np.float32))
    except Exception as error:
        log.warning("Packed codes are read with torch, since numba does not work here: %s.", type(error).__name__)
        return None

    def unpack(codes: Tensor, bits: int, count: int, levels: Tensor) -> Tensor:
        rows = codes.reshape(-1, codes.shape[-1])
        out = torch.empty(len(rows), count)
        loop(rows.numpy(), bits, levels.numpy(), out.numpy())
        return out.view(*codes.shape[:-1], count)

    return unpack


def _compiled_loop() -> Callable[[np.ndarray, int, np.ndarray, np.ndarray], None]:
    from numba import njit

    loop: Callable[..., None] = njit(cache=True, nogil=True, error_model="numpy")(_write_levels)
    return loop


def _write_levels(codes: np.ndarray, bits: int, levels: np.ndarray, out: np.ndarray) -> None:
    """Write levels of packed codes (R, bytes) into `out` (R, count); 8 numbers fill `bits` bytes, lowest bits first."""
    mask, count, size = np.uint64((1 << bits) - 1), out.shape[1], codes.shape[1]
    for row in range(len(codes)):
        for first in range(0, count, 8):
            start, word = first // 8 * bits, np.uint64(0)
            for byte in range(min(bits, size - start)):
                word |= np.uint64(codes[row, start + byte]) << np.uint64(8 * byte)
            for place in range(min(8, count - first)):
                out[row, first + place] = levels[(word >> np.uint64(place * bits)) & mask]
