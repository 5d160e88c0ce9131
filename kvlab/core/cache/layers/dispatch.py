"""Dispatch of decisions to in-place kernels: which decisions qualify, kernel inputs, fallback to the pipeline."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvlab.core.attention.kernels import kernels_on, launching_on, warn_without
from kvlab.core.contract import EVICT, KEY_LENGTH, Pipeline, View, Work, is_constant

if TYPE_CHECKING:
    from kvlab.core.attention.pass_view import PassView
    from kvlab.core.cache.buckets.bucket import Bucket

Decide = Callable[[Work], None]

_failed = False  # the kernel could not be compiled in this process


def kernel_input(view: View, pipeline: Pipeline, bucket: Bucket) -> Work | None:
    """Kernel input for the decision about `view`, whose slots are the table's own, remembered for reuse.

    None if the kernel cannot decide.
    """
    decision = pipeline.in_place
    if _failed or decision is None:
        return None
    if view.most_excess != 1 or not view.certain or view.layer_pass.moves_logits:
        return None
    slots = view.slots
    if KEY_LENGTH in slots.extra:  # the kernel computes key lengths itself and would leave this column stale
        return None
    fields = decision.fields(view)
    if fields is None:
        return None
    columns = {"score": slots.score, "votes": slots.votes, "log_mass": slots.log_mass}
    stored: dict[str, Any] = {name: column for name, column in columns.items() if not is_constant(column)}
    recent, sinks = decision.bounds(view)
    work = Work(
        kind=decision.kind,
        keys=slots.keys,
        values=slots.values,
        position=slots.position,
        mass=view.layer_pass.last_mass(),
        tokens_seen=view.tokens_seen,
        recent=recent,
        sinks=sinks,
        evicted_votes=bucket.evicted_votes,
        decay=decision.decay,
        **stored,
        **fields,
    )
    # All columns must share strides, and the last axis of keys, values and mass must be contiguous.
    stored_columns = (work.score, work.votes, work.log_mass, work.average, work.residual)
    alike = all(column is None or column.stride() == work.position.stride() for column in stored_columns)
    dense = work.position.stride(2) == work.mass.stride(2) == 1 and work.keys.stride(3) == work.values.stride(3) == 1
    of_heads = (work.evicted_votes, work.recent, work.sinks, work.asked)
    if not (alike and dense and all(part is None or part.is_contiguous() for part in of_heads)):
        return None
    bucket.last_work = bucket.work_key(), work
    return work


@lru_cache
def decision_kernel(device: torch.device) -> Decide | None:
    """The kernel for `device`, or None to use the pipeline (see `kvlab.core.attention.kernels.one_query_kernel`)."""
    return None if _failed or not kernels_on(device) else _launch


def _launch(work: Work) -> None:
    from kvlab.core.cache.triton_inplace import decide

    with launching_on(work.keys):
        decide(work)


def reusable_work(bucket: Bucket, layer_pass: PassView, tokens_seen: Tensor) -> Work | None:
    """Reuse the bucket's last kernel input if only the last pass's mass and the time have changed; else None."""
    known, work = bucket.last_work
    if _failed or work is None or not all(map(operator.is_, bucket.work_key(), known)):
        return None
    work.mass = layer_pass.last_mass()
    work.tokens_seen = tokens_seen
    return work


def run_kernel(work: Work | None, bucket: Bucket, kernel: Decide) -> bool:
    """Score and decide about one table with `kernel`; returns false, and changes nothing, if that is not possible."""
    global _failed
    if work is None or _failed:
        return False
    try:
        kernel(work)
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # device errors, not the kernel's
        raise
    except Exception as error:
        _failed = True
        decision_kernel.cache_clear()
        warn_without("decision", error)
        return False
    # Every head exceeded its budget before and meets it now.
    assert bucket.head_budgets is not None
    table = bucket.table
    table.occupied = min(table.occupied, bucket.head_budgets.largest)
    table.is_dense = False
    table.weighted = table.weighted or work.kind != EVICT
    if work.kind != EVICT or bucket.index_counts:
        bucket.index = None
    work.mass = table.never  # a scalar: release the mass tensor; the next step brings its own
    return True
