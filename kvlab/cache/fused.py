"""Decisions that one kernel takes whole: which they are, what it is given, and plain torch where it cannot be made."""

from __future__ import annotations

import os
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvlab.attention.kernels import SWITCH, kernels_on, launching_on, warn_without
from kvlab.cache.decision_work import ABSORB, EVICT, NEAREST, POOL, RESIDUAL, SIMILAR, SPREAD, Work
from kvlab.cache.on_host import Decide, host_kernel, on_host, takes
from kvlab.methods.columns import ASKED, there
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.scorers.attention.accumulated import AccumulatedAttention
from kvlab.methods.scorers.attention.ema import EMA, EmaScore
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.selectors.oldest import Oldest
from kvlab.methods.settlers.absorb import HEAD, Absorb
from kvlab.methods.settlers.eviction.evict import Evict
from kvlab.methods.settlers.merging.cosine_merge import THRESHOLD, CosineMerge
from kvlab.methods.settlers.merging.draws import stream_start
from kvlab.methods.settlers.merging.nearest_merge import NearestMerge
from kvlab.methods.settlers.merging.value_merge import ValueMerge
from kvlab.methods.settlers.pooling.pool import COVERS, GENERATION, Pool
from kvlab.methods.settlers.residuals.residual import RESIDUAL as RESIDUAL_COLUMN
from kvlab.methods.settlers.residuals.residual import ResidualMerge
from kvlab.methods.view import KEY_LENGTH, View, is_constant

if TYPE_CHECKING:
    from kvlab.attention.seen import PassSeen
    from kvlab.cache.bucket import Bucket

_failed = False  # the kernel could not be made in this process


def decides_whole(pipeline: Pipeline, kernel: Decide | None = None) -> bool:
    """Whether `kernel` (default the one of a GPU) knows all four choices, with these settings."""
    score, select, settle = pipeline.score, pipeline.select, pipeline.settle
    if kernel is not None and on_host(kernel) and not takes(kernel, settle):
        return False
    if isinstance(settle, NearestMerge):
        known = isinstance(score, EmaScore) and not score.raw and settle.goes_by_scores and not settle.per_head_mass
        return known and _selects_by_score(select)
    if not isinstance(score, AccumulatedAttention):
        return False
    if isinstance(settle, ValueMerge):
        return isinstance(select, Oldest) and settle.chance == "mean" and settle.reach is not None
    if isinstance(settle, ResidualMerge):
        plain = settle.similarity == "dot" and settle.mass == "alpha" and settle.space == "rotated"
        return plain and settle.share > 0 and _selects_by_score(select)
    if isinstance(settle, CosineMerge):
        plain = settle.rule == "paper" and settle.mass.rule == "none" and settle.space == "rotated"
        return plain and _selects_by_score(select)
    if isinstance(settle, Absorb | Pool):
        return kernel is not None and on_host(kernel) and decides_on_cpu_alone(pipeline)
    return isinstance(settle, Evict) and _selects_by_score(select)


def decides_on_cpu_alone(pipeline: Pipeline) -> bool:
    """Whether what is compiled for a CPU knows all four choices, and the kernel of a GPU does not."""
    settle = pipeline.settle
    known = isinstance(settle, Absorb) or (
        isinstance(settle, Pool) and settle.pooling == "best" and settle.repool == "graded"
    )
    return known and isinstance(pipeline.score, AccumulatedAttention) and _selects_by_score(pipeline.select)


def _selects_by_score(select: object) -> bool:
    return isinstance(select, LowestScore) and select.of == "budget"


def work_of(view: View, pipeline: Pipeline, dropped: Tensor, kernel: Decide) -> Work | None:
    """The decision about `view`, whose slots are as they lie in memory; None where `kernel` cannot take it."""
    if not (view.most_excess == 1 and decides_whole(pipeline, kernel) and _is_certain(view, pipeline)):
        return None
    if view.seen.moves_logits:
        return None
    slots, settle, score = view.slots, pipeline.settle, pipeline.score
    host = on_host(kernel)
    if KEY_LENGTH in slots.extra and not host:  # the kernel measures keys itself, and would leave these as they are
        return None
    bounds = select = pipeline.select
    columns = {"score": slots.score, "votes": slots.votes, "log_mass": slots.log_mass}
    own: dict[str, Any] = {name: column for name, column in columns.items() if not is_constant(column)}
    if isinstance(select, Oldest):
        bounds = LowestScore(sinks=select.sinks)
    if isinstance(settle, ResidualMerge):
        if view.smallest_budget < 2:
            return None
        room, _ = view.of_budget(settle, lambda: settle.split(view))
        own |= {"kind": RESIDUAL, "residual": slots.extra[RESIDUAL_COLUMN], "sums": settle.combine_score == "sum"}
    elif isinstance(settle, NearestMerge):
        own |= {"kind": NEAREST, "average": slots.extra[EMA], "asked": view.head_state[ASKED]}
        own |= {"mass_of_votes": 1.0, "bias": settle.rule == "bias"}
        own |= {"least": settle.threshold, "alpha": settle.alpha}
    elif isinstance(settle, CosineMerge):
        if THRESHOLD not in view.head_state:
            return None
        own |= {"kind": SIMILAR, "threshold": view.head_state[THRESHOLD], "least": settle.smoothing}
    elif isinstance(settle, ValueMerge):
        assert isinstance(select, Oldest) and settle.reach is not None
        reach = min(settle.reach, slots.valid.shape[-1])
        if select.window(view) < reach:
            return None
        seed = 0 if view.generator is None else view.generator.initial_seed()
        own |= {"kind": SPREAD, "reach": reach, "drawn": settle.draw == "bernoulli", "stream": stream_start(seed)}
    elif isinstance(settle, Pool):
        room = settle.room(view)
        own |= {"kind": POOL, "covers": slots.extra[COVERS], "generation": slots.extra[GENERATION]}
    elif isinstance(settle, Absorb):
        if HEAD not in view.head_state:
            return None
        own |= {"kind": ABSORB, "absorb": partial(settle.absorb, view.layer_idx, view.head_state)}
    else:
        own |= {"kind": EVICT}
    assert isinstance(bounds, LowestScore)
    budget = room if isinstance(settle, ResidualMerge | Pool) else view.budget
    recent, sinks = bounds.bounds_of(view, budget)
    if isinstance(score, AccumulatedAttention):
        own |= {"decay": score.decay}
    work = Work(
        keys=slots.keys, values=slots.values, position=slots.position, mass=view.seen.last_mass(),
        tokens_seen=view.tokens_seen, recent=recent, sinks=sinks, dropped=dropped, lengths=slots.extra.get(KEY_LENGTH),
        **own,
    )  # fmt: skip
    if host and not _fits_host(work):
        return None
    return work if _is_laid_out(work) else None


def _is_certain(view: View, pipeline: Pipeline) -> bool:
    """Whether every head has one slot too many. Pools of a prompt may leave fewer, so that slots are counted here."""
    if not isinstance(pipeline.settle, Pool):
        return view.certain
    one = view.phase == "decode" and view.started and pipeline.settle.joins_one(view, pipeline.select)
    return one and bool((there(view.slots.position).sum(-1) == view.budget + 1).all())


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
    from kvlab.cache.decision_kernel import decide

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
