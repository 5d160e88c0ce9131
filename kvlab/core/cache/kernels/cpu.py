"""In-place decision kernels on a CPU, compiled if `numba` is installed; without it the pipeline decides."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

from kvlab.core.contract.in_place import ABSORB, EVICT, LEAVE_NO_TRACE, NEAREST, POOL, RESIDUAL, SIMILAR, SPREAD
from kvlab.core.contract.inplace_work import Work
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.slot_columns import stores_key_lengths
from kvlab.core.stores.unpack_kernel import SWITCH

Decide = Callable[[Work], None]

log = logging.getLogger(__name__)
_recorded = ContextVar("_recorded", default=False)


def cpu_kernel() -> Decide | None:
    """The in-place decision kernel of this CPU, or None to use the pipeline."""
    module = numba_kernels()
    decide: Decide | None = None if module is None else module.decide
    return decide


def is_cpu_kernel(kernel: Decide | None) -> bool:
    """Whether `kernel` is a CPU kernel."""
    module = numba_kernels() if numba_kernels.cache_info().currsize else None  # do not load it only for this check
    return module is not None and kernel is module.decide


@contextmanager
def disable_kernels() -> Iterator[None]:
    """Disable kernels that bypass torch while torch's operations are being recorded."""
    token = _recorded.set(True)
    try:
        yield
    finally:
        _recorded.reset(token)


def is_recording() -> bool:
    """Whether torch's operations are being recorded."""
    return _recorded.get()


@lru_cache
def numba_kernels() -> ModuleType | None:
    """`kvlab.core.cache.kernels.numba_inplace`, or None if numba is missing or does not work here."""
    if find_spec("numba") is None:
        return None
    try:
        module = import_module("kvlab.core.cache.kernels.numba_inplace")
        module.decide(_smallest(SIMILAR, torch.zeros(1, 2, 2, 2)))
    except Exception as error:
        message = next(iter(str(error).splitlines()), "")
        log.warning(
            "Decision kernels cannot be compiled for this CPU, so the pipeline decides: %s: %s. Set %s=off to skip "
            "the attempt.",
            *(type(error).__name__, message.rstrip("."), SWITCH),
        )
        return None
    return module


def precompile(pipeline: Pipeline, dtype: torch.dtype) -> None:
    """Compile the kernels `pipeline` needs, so that no decode step waits for it.

    Takes a few seconds the first time on a machine, and half a second for an import afterwards.
    """
    if pipeline.in_place is not None and dtype == torch.float32:
        _compile_kernel(pipeline.in_place.kind)


@lru_cache
def _compile_kernel(kind: int) -> None:
    if (module := numba_kernels()) is not None:
        shared = module.SLOTS_EACH * torch.get_num_threads() // 2  # enough slots for several threads
        for slots in (2, shared):
            module.ready(_smallest(kind, torch.zeros(1, 2, slots, 2)))


def _smallest(kind: int, keys: torch.Tensor) -> Work:
    """A minimal decision about two heads of zero slots (1, 2, S, d), in the dtypes of short texts."""

    def column(dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(keys.shape[:3], dtype=dtype)

    one = torch.ones(1, 2, dtype=torch.int64)
    own: dict[int, dict[str, Any]] = {
        NEAREST: {"average": column(), "asked": torch.zeros(1, 2, 2, dtype=torch.int64)},
        SIMILAR: {"score": column(), "threshold": torch.zeros(1, 2, 1)},
        RESIDUAL: {"score": column(), "residual": column(torch.bool)},
        EVICT: {"score": column()},
        ABSORB: {"score": column()},
        POOL: {"score": column(), "covers": column(torch.int16) + 1, "generation": column(torch.int16)},
        SPREAD: {"score": column()},
    }
    return Work(
        kind=kind, keys=keys, values=keys.clone(), position=torch.arange(keys.shape[2]).to(torch.int16).repeat(1, 2, 1),
        mass=column(), tokens_seen=one[0, :1] * keys.shape[2], recent=one, sinks=one[..., None] * 0,
        evicted_votes=torch.zeros(1, 2),
        votes=None if kind in LEAVE_NO_TRACE else column(torch.int16) + 1,
        lengths=column() if stores_key_lengths(keys, keys) else None,
        **own[kind],
    )  # fmt: skip
