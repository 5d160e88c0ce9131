"""How many slots the fused kernel takes at once, so that what it holds fits a processor's shared memory."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

import torch

from kvlab.common.errors import UserError

SMALLEST_DOT = 16  # rows and columns a matrix product needs at least
EVERY_DEVICE = 48 * 1024  # bytes a kernel gets on any CUDA device
SPARE = 1024  # bytes for sums over warps
# Numbers of a tile of keys up to which four warps keep everything in registers: tensor cores, and float32 without them.
MOST_NUMBERS = {2: 64 * 128, 4: 16 * 128}
BLOCKS, STAGES = (64, 32, 16), (3, 2)


class LaunchShape(NamedTuple):
    """Slots a program takes at once, stages of its pipeline of loads, and warps it runs on."""

    block: int
    stages: int
    warps: int


def launch_shape(head_dim: int, dtype: torch.dtype, shared_memory: int, group: int = 1) -> LaunchShape:
    """The largest shape that fits `shared_memory` bytes, for keys and values (slots, head_dim) and `group` queries.

    Blocks as large as registers allow, then as many stages as fit. Raises UserError where even the smallest does not.
    """
    width, most = padded(head_dim), MOST_NUMBERS[max(2, dtype.itemsize)]
    for block, stages in product(BLOCKS, STAGES):
        in_registers = block * width <= most
        fits = shared_bytes(head_dim, dtype, block, stages, group) <= shared_memory
        if fits and (in_registers or block == BLOCKS[-1]):
            return LaunchShape(block, stages, 4 if padded(group) == SMALLEST_DOT else 8)
    raise UserError(
        f"The fused attention kernel does not fit {shared_memory / 1024:.0f} KiB of shared memory at head_dim "
        f"{head_dim} in {str(dtype).removeprefix('torch.')} with {group} query heads a KV head."
    )


def shared_bytes(head_dim: int, dtype: torch.dtype, block: int, stages: int, group: int = 1) -> int:
    """Shared memory of one program, bytes: tiles of keys and values under way, the queries, one tile of weights.

    tests/core/test_kernel_compiles.py holds this against what Triton's compiler asks for.
    """
    width, rows = padded(head_dim), padded(group)
    return dtype.itemsize * width * (2 * (stages - 1) * block + rows) + 4 * rows * block + SPARE


def padded(size: int) -> int:
    """The power of two a tile's side is padded to."""
    return max(SMALLEST_DOT, 1 << (size - 1).bit_length())


@lru_cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory a kernel may ask for on `device`; without a GPU what every one has."""
    if device.type != "cuda":
        return EVERY_DEVICE
    found = torch.cuda.get_device_properties(device)
    return int(getattr(found, "shared_memory_per_block_optin", 0)) or EVERY_DEVICE
