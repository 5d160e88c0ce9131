"""Decisions that one kernel takes whole: which they are, what it is given, and plain torch where it cannot be made."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvlab.attention.kernels import SWITCH, kernels_on, launching_on, warn_without
from kvlab.cache.kernels.cpu import Decide, host_kernel, on_host, takes
from kvlab.methods.core.in_place import NEAREST, SIMILAR
from kvlab.methods.core.inplace_work import Work
from kvlab.methods.core.pipeline import Pipeline
from kvlab.methods.core.view import KEY_LENGTH, View, is_constant

if TYPE_CHECKING:
    from kvlab.attention.pass_view import PassSeen
    from kvlab.cache.buckets.bucket import Bucket

_failed = False  # the kernel could not be made in this process


def decides_whole(pipeline: Pipeline, kernel: Decide | None = None) -> bool:
    """Whether `kernel` (default the one of a GPU) carries out the pipeline's decisions in place."""
    decision = pipeline.in_place
    if decision is None:
        return False
    if kernel is not None and on_host(kernel):
        return takes(kernel, decision)
    return not decision.cpu_only


def decides_on_cpu_alone(pipeline: Pipeline) -> bool:
    """Whether only the kernels compiled for a CPU carry out the pipeline's decisions in place."""
    return pipeline.in_place is not None and pipeline.in_place.cpu_only


def work_of(view: View, pipeline: Pipeline, dropped: Tensor, kernel: Decide) -> Work | None:
    """The decision about `view`, whose slots are as they lie in memory; None where `kernel` cannot take it."""
    decision = pipeline.in_place
    if decision is None or not decides_whole(pipeline, kernel):
        return None
    if view.most_excess != 1 or not decision.certain(view) or view.seen.moves_logits:
        return None
    slots, host = view.slots, on_host(kernel)
    if KEY_LENGTH in slots.extra and not host:  # the kernel measures keys itself, and would leave these as they are
        return None
    fields = decision.fields(view)
    if fields is None:
        return None
    columns = {"score": slots.score, "votes": slots.votes, "log_mass": slots.log_mass}
    own: dict[str, Any] = {name: column for name, column in columns.items() if not is_constant(column)}
    recent, sinks = decision.bounds(view)
    work = Work(
        kind=decision.kind, keys=slots.keys, values=slots.values, position=slots.position, mass=view.seen.last_mass(),
        tokens_seen=view.tokens_seen, recent=recent, sinks=sinks, dropped=dropped, lengths=slots.extra.get(KEY_LENGTH),
        decay=decision.decay, **own, **fields,
    )  # fmt: skip
    if host and not _fits_host(work):
        return None
    return work if _is_laid_out(work) else None


def _fits_host(work: Work) -> bool:
    """Whether a CPU's kernels can take it: plain torch knows two kinds, and a compiled walk wants float32 in memory."""
    known = work.kind in (NEAREST, SIMILAR) or work.keys.dtype == torch.float32
    return known and work.keys.is_contiguous() and type(work.keys) is Tensor


def _is_laid_out(work: Work) -> bool:
    """Whether all columns lie alike in memory, and numbers of a key and of the masses one behind the other."""
    columns = (*(work.score, work.votes, work.log_mass, work.average, work.residual, work.lengths),)
    alike = all(column is None or column.stride() == work.position.stride() for column in columns)
    dense = work.position.stride(2) == work.mass.stride(2) == 1 and work.keys.stride(3) == work.values.stride(3) == 1
    of_heads = (work.dropped, work.recent, work.sinks, work.asked)
    return alike and dense and all(part is None or part.is_contiguous() for part in of_heads)


@lru_cache
def decision_kernel(device: torch.device) -> Decide | None:
    """The kernel for `device`, or None where the pipeline decides (see `kvlab.attention.kernels.one_query_kernel`).

    A CPU has one too, compiled or in plain torch.
    """
    if device.type == "cpu":
        return None if os.environ.get(SWITCH) == "off" else host_kernel()
    return None if _failed or not kernels_on(device) else _launch


def _launch(work: Work) -> None:
    from kvlab.cache.kernels.triton_inplace import decide

    with launching_on(work.keys):
        decide(work)


def new_work(view: View, pipeline: Pipeline, bucket: Bucket, kernel: Decide) -> Work | None:
    """The decision about one table for `kernel`; None where that cannot take it."""
    work = None if _failed else work_of(view, pipeline, bucket.dropped, kernel)
    if work is not None:
        work.full = view.smallest_budget == view.largest_budget == work.position.shape[2] - 1
        bucket.last_work = bucket.known_by(), work
    return work


def work_again(bucket: Bucket, seen: PassSeen, tokens_seen: Tensor) -> Work | None:
    """The same where the last decision about `bucket` was made so, and nothing but `seen` and the time is new."""
    work = None if _failed else bucket.work_again()
    if work is not None:
        work.mass, work.tokens_seen = seen.last_mass(), tokens_seen
        work.products, work.scaling = seen.products, seen.scaling
    return work


def carried_out(work: Work | None, bucket: Bucket, kernel: Decide) -> bool:
    """Score and decide about one table with `kernel`; false, and nothing is changed, where that cannot be done here."""
    if work is None or not _done(work, kernel):
        return False
    bucket.was_decided(work)
    work.products = None
    work.mass = work.never  # the next step brings its own: nobody holds a table's worth of numbers between two
    return True


def _done(work: Work, kernel: Decide) -> bool:
    """Whether `kernel` could do it."""
    global _failed
    if on_host(kernel):
        kernel(work)
        return True
    if _failed:
        return False
    try:
        kernel(work)
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # the device's own troubles, not the kernel's
        raise
    except Exception as error:
        _failed = True
        decision_kernel.cache_clear()
        warn_without("decision", error)
        return False
    return True
