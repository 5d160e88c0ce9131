"""Tile size of the fused attention kernel, chosen to fit a GPU's shared memory."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

import torch

from kvlab.core.errors import UserError

SMALLEST_DOT = 16  # minimum rows and columns of a matrix product
EVERY_DEVICE = 48 * 1024  # shared memory available on any CUDA device, bytes
SPARE = 1024  # bytes for sums over warps
# Largest key tile that four warps keep in registers, by item size: with tensor cores, and float32 without.
MOST_NUMBERS = {2: 64 * 128, 4: 16 * 128}
BLOCKS = (64, 32, 16)
STAGES = (3, 2)


class LaunchShape(NamedTuple):
    """Slots per program, pipeline stages of its loads, and warps."""

    block: int
    stages: int
    warps: int


def launch_shape(head_dim: int, dtype: torch.dtype, shared_memory: int, group: int = 1) -> LaunchShape:
    """Largest shape that fits `shared_memory` bytes, for keys and values (slots, head_dim) and `group` queries.

    Blocks are as large as registers allow, then as many stages as fit. Raises UserError if even the smallest does not
    fit.
    """
    width = pad_side(head_dim)
    most = MOST_NUMBERS[max(2, dtype.itemsize)]
    for block, stages in product(BLOCKS, STAGES):
        in_registers = block * width <= most
        fits = shared_bytes(head_dim, dtype, block, stages, group) <= shared_memory
        if fits and (in_registers or block == BLOCKS[-1]):
            return LaunchShape(block, stages, 4 if pad_side(group) == SMALLEST_DOT else 8)
    raise UserError(
        f"The fused attention kernel does not fit {shared_memory / 1024:.0f} KiB of shared memory at head_dim "
        f"{head_dim} in {str(dtype).removeprefix('torch.')} with {group} query heads per KV head."
    )


def shared_bytes(head_dim: int, dtype: torch.dtype, block: int, stages: int, group: int = 1) -> int:
    """Shared memory of one program in bytes: tiles of keys and values in flight, queries, one tile of weights.

    tests/cache/test_triton_compiles.py compares it with the compiler's figure.
    """
    width = pad_side(head_dim)
    rows = pad_side(group)
    return dtype.itemsize * width * (2 * (stages - 1) * block + rows) + 4 * rows * block + SPARE


def pad_side(size: int) -> int:
    """The power of two to which a tile's side is padded."""
    return max(SMALLEST_DOT, 1 << (size - 1).bit_length())


@lru_cache
def shared_memory(device: torch.device) -> int:
    """Shared memory in bytes that a kernel may use on `device`; without a GPU, the minimum of all devices."""
    if device.type != "cuda":
        return EVERY_DEVICE
    found = torch.cuda.get_device_properties(device)
    return int(getattr(found, "shared_memory_per_block_optin", 0)) or EVERY_DEVICE
