"""Choose the attention kernel for decode steps."""

from __future__ import annotations

import logging
import os
import shutil
import sysconfig
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kvlab.core.attention.slot_attention import probabilities, slot_logits
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


SWITCH = "KVLAB_KERNELS"  # environment variable; "off": no kernels of kvlab's own
OneQuery = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], tuple[Tensor, Tensor, Tensor]]

log = logging.getLogger(__name__)
_failed = False  # the kernel could not be compiled in this process


@lru_cache
def one_query_kernel(device: torch.device) -> OneQuery | None:
    """The fused kernel for `device`, or None to use plain torch.

    CUDA needs the package `triton`; the environment variable KVLAB_KERNELS=off selects plain torch. If the kernel
    cannot be compiled, plain torch computes the result, one warning is logged, and None is returned from then on.
    """
    return None if _failed or not kernels_on(device) else _fused_or_plain


def attention_over_chosen(
    query: Tensor, keys: Tensor, values: Tensor, slots: Tensor, bias: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor] | None:
    """`triton_decode.chosen_attention`, or None where plain torch is to be used, as in `one_query_kernel`."""
    if _failed or not kernels_on(query.device):
        return None
    return _fused("chosen_attention", query, keys, values, slots, bias, scaling)


def kernels_on(device: torch.device) -> bool:
    """Whether to try kvlab's own kernels on `device`."""
    return device.type == "cuda" and os.environ.get(SWITCH) != "off" and find_spec("triton") is not None


def launching_on(tensor: Tensor) -> AbstractContextManager[None]:
    """Context in which to launch kernels: Triton uses the current device, which may differ from the layer's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def warn_without(kernel: str, error: Exception) -> None:
    """Log why plain torch replaces a fused `kernel`."""
    message = next(iter(str(error).splitlines()), "")
    log.warning(
        "The fused %s kernel cannot be compiled here, so plain torch is used: %s: %s. Triton needs a C compiler and "
        "Python's headers (gcc, python3-dev); set %s=off to skip the attempt.",
        *(kernel, type(error).__name__, message.rstrip("."), SWITCH),
    )


def missing() -> list[str]:
    """Missing requirements of Triton on this machine: the package, a C compiler, Python's headers."""
    compilers = [os.environ.get("CC", ""), "gcc", "clang", "cc"]
    there = {
        "the package triton": find_spec("triton") is not None,
        "a C compiler (gcc)": any(map(shutil.which, filter(None, compilers))),
        "Python.h (python3-dev)": (Path(sysconfig.get_path("include")) / "Python.h").exists(),
    }
    return [name for name, found in there.items() if not found]


def reference(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Plain-torch reference of `triton_decode.ragged_attention`, for any device."""
    logits = slot_logits(query.flatten(1, 2)[:, :, None], keys, first=0, rows=1, scaling=scaling)
    mass = probabilities(logits, None if bias is None else bias[:, :, None])[:, :, :, 0]
    return (mass @ values.float()).to(query.dtype), mass, logits[:, :, :, 0]


def _fused_or_plain(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor, Tensor]:
    given = query, keys, values, bias, scaling
    found = _fused("ragged_attention", *given)
    return reference(*given) if found is None else found


def _fused(kernel: str, query: Tensor, keys: Tensor, *others: Any) -> Any:
    """What the `kernel` of `triton_decode` returns; None, from then on, if it cannot be compiled."""
    global _failed
    try:
        with launching_on(keys):
            return getattr(import_module("kvlab.core.attention.triton_decode"), kernel)(query, keys, *others)
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # device errors, not the kernel's
        raise
    except Exception as error:  # compiler, linker, driver and missing programs each raise their own
        _failed = True
        one_query_kernel.cache_clear()
        warn_without("attention", error)
        return None
