"""Dispatch of decisions to in-place kernels: which decisions qualify, kernel inputs, fallback to the pipeline."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kvlab.core.attention.kernels import kernels_on, launching_on, warn_without
from kvlab.core.cache.kernels.cpu import Decide, cpu_kernel, is_cpu_kernel, numba_kernels
from kvlab.core.cache.table.head_index import Streams
from kvlab.core.contract.inplace_work import Work
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.view import KEY_LENGTH, View, is_constant
from kvlab.core.stores.unpack_kernel import SWITCH

if TYPE_CHECKING:
    from kvlab.core.attention.pass_view import PassSeen
    from kvlab.core.cache.buckets.bucket import Bucket

_failed = False  # the kernel could not be compiled in this process


def has_kernel_for(pipeline: Pipeline, kernel: Decide | None = None) -> bool:
    """Whether `kernel` (default: the GPU's) supports the pipeline's decisions in place."""
    decision = pipeline.in_place
    return decision is not None and (is_cpu_kernel(kernel) or not decision.cpu_only)


def work_of(view: View, pipeline: Pipeline, evicted_votes: Tensor, kernel: Decide) -> Work | None:
    """Kernel input for the decision about `view`, whose slots are the table's own; None if `kernel` cannot make it."""
    decision = pipeline.in_place
    if decision is None or not has_kernel_for(pipeline, kernel):
        return None
    if view.most_excess != 1 or not decision.certain(view) or view.seen.moves_logits:
        return None
    slots, keys = view.slots, view.slots.keys
    if is_cpu_kernel(kernel):
        if keys.dtype != torch.float32 or not keys.is_contiguous() or type(keys) is not Tensor:
            return None
    elif KEY_LENGTH in slots.extra:  # the kernel computes key lengths itself and would leave this column stale
        return None
    fields = decision.fields(view)
    if fields is None:
        return None
    columns = {"score": slots.score, "votes": slots.votes, "log_mass": slots.log_mass}
    own: dict[str, Any] = {name: column for name, column in columns.items() if not is_constant(column)}
    recent, sinks = decision.bounds(view)
    work = Work(
        kind=decision.kind, keys=slots.keys, values=slots.values, position=slots.position, mass=view.seen.last_mass(),
        tokens_seen=view.tokens_seen, recent=recent, sinks=sinks, evicted_votes=evicted_votes,
        lengths=slots.extra.get(KEY_LENGTH), decay=decision.decay, **own, **fields,
    )  # fmt: skip
    return work if _is_laid_out(work) else None


def _is_laid_out(work: Work) -> bool:
    """Whether all columns share strides and the last axis of keys, values and mass is contiguous."""
    columns = (*(work.score, work.votes, work.log_mass, work.average, work.residual, work.lengths),)
    alike = all(column is None or column.stride() == work.position.stride() for column in columns)
    dense = work.position.stride(2) == work.mass.stride(2) == 1 and work.keys.stride(3) == work.values.stride(3) == 1
    of_heads = (work.evicted_votes, work.recent, work.sinks, work.asked)
    return alike and dense and all(part is None or part.is_contiguous() for part in of_heads)


@lru_cache
def decision_kernel(device: torch.device) -> Decide | None:
    """The kernel for `device`, or None to use the pipeline (see `kvlab.core.attention.kernels.one_query_kernel`).

    CPUs have one if it can be compiled.
    """
    if device.type == "cpu":
        return None if os.environ.get(SWITCH) == "off" else cpu_kernel()
    return None if _failed or not kernels_on(device) else _launch


def _launch(work: Work) -> None:
    from kvlab.core.cache.kernels.triton_inplace import decide

    with launching_on(work.keys):
        decide(work)


def kernel_input(view: View, pipeline: Pipeline, bucket: Bucket, kernel: Decide) -> Work | None:
    """Kernel input for the decision about one table, remembered for reuse; None if `kernel` cannot make it."""
    work = None if _failed else work_of(view, pipeline, bucket.evicted_votes, kernel)
    if work is not None:
        work.full = view.smallest_budget == view.largest_budget == work.position.shape[2] - 1
        bucket.last_work = bucket.work_key(), work
    return work


def reusable_work(bucket: Bucket, seen: PassSeen, tokens_seen: Tensor) -> Work | None:
    """Reuse the bucket's last kernel input if only `seen` and the time have changed; else None."""
    work = None if _failed else bucket.reusable_work()
    if work is not None:
        work.mass, work.tokens_seen = seen.last_mass(), tokens_seen
        work.products, work.scaling = seen.products, seen.scaling
    return work


def run_kernel(work: Work | None, bucket: Bucket, kernel: Decide) -> bool:
    """Score and decide about one table with `kernel`; returns false, and changes nothing, if that is not possible."""
    global _failed
    if work is None or (_failed and not is_cpu_kernel(kernel)):
        return False
    try:
        kernel(work)
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # device errors, not the kernel's
        raise
    except Exception as error:
        if is_cpu_kernel(kernel):
            raise
        _failed = True
        decision_kernel.cache_clear()
        warn_without("decision", error)
        return False
    bucket.note_decision(work)
    work.products = None
    work.mass = work.no_mass  # release the mass tensor; the next step brings its own
    return True


COUNT_NAMES = ("merged", "live_slots", "max_votes")


def counts_of(streams: Streams, works: Sequence[Work]) -> np.ndarray:
    """Counts (3, B, H) float32 of a layer after an in-place CPU decision, as in `COUNT_NAMES`: merged (1 or 0), valid
    slots, most votes per slot."""
    module, parts = numba_kernels(), []
    assert module is not None
    for work in works:
        position, votes = work.counted
        assert work.merged is not None
        parts.append(module.counts(position, position if votes is None else votes, votes is None, work.merged.numpy()))
    if streams.whole:
        counts = parts[0]
    else:
        counts = np.empty((len(COUNT_NAMES), streams.batch * streams.heads), dtype=np.float32)
        for part, heads in zip(parts, streams.numbers, strict=True):
            counts[:, heads] = part
    return counts.reshape(-1, streams.batch, streams.heads)
