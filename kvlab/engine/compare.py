"""Compare methods on one prompt: each decodes the full cache's continuation (recorded) and its own (timed)."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from kvlab.common.errors import UserError
from kvlab.common.limits import TURNS_SHARE
from kvlab.common.validation import in_one_sentence, path_of, shown
from kvlab.engine.interleaved_timing import time_interleaved
from kvlab.engine.out_of_memory import memory_guard
from kvlab.engine.passes import ActiveRun, forced_pass, free_pass
from kvlab.engine.prepare import Prepared, prepare
from kvlab.engine.probing.probe import probe
from kvlab.engine.progress import Cancelled, Watch, download_reporter
from kvlab.engine.prompt import Reference, full_cache_reference
from kvlab.engine.record import complete_runs, record_of, run_id_of
from kvlab.methods.eviction.gvote import GVote
from kvlab.models.load import LoadedModel
from kvlab.requests.budget import Budget
from kvlab.requests.compare import CompareRequest, MethodChoice, Progress, RecordLevel
from kvlab.requests.recording import Recording
from kvlab.trace import Run, RunWriter, open_run, pending_requests
from kvlab.trace.schema import check_id


def compare(
    request: CompareRequest,
    root: Path | str = "runs",
    *,
    comparison_id: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    loaded: LoadedModel | None = None,
    resume: bool = False,
) -> list[Path]:
    """Run every choice of `request` over its prompt and return the run folders, in order.

    With more than one choice the full cache always runs too, first. A stop (`cancelled`, or Ctrl-C) leaves finished
    runs complete and marks the current one cancelled, then returns or re-raises. With `resume` the complete runs of
    `comparison_id` are kept and only the others run.
    Raises UserError for bad input before anything runs or is written, and when memory runs out: finished runs are
    kept, the current one is marked failed, and the device's memory is freed.
    """
    if not isinstance(request, CompareRequest):
        raise UserError(f"compare needs a kvlab.requests.compare.CompareRequest, not {shown(request)}.")
    root = path_of(root, "The folder of runs")
    if request.is_batch:
        raise UserError(
            "A request with repeats or several prompts is several comparisons: pass it to kvlab.jobs.batch.run_batch."
        )
    comparison_id = check_id(comparison_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}")
    complete = complete_runs(request, root, comparison_id) if resume else None
    if complete is not None and len(complete) == len(request.runs):
        pending_requests.remove_request(root, comparison_id)
        return list(complete.values())
    prepared = prepare(request, root, loaded, download_reporter(progress, cancelled))
    watch = Watch((1 + request.max_new_tokens) * (1 + 2 * len(request.runs)), progress, cancelled)
    paths: list[Path] = []
    if request.repeat is None:  # a batch resumes by itself
        pending_requests.save_request(root, comparison_id, request)
    try:
        _run_all(prepared, root, comparison_id, complete, paths, watch)
        pending_requests.remove_request(root, comparison_id)
    except Cancelled:
        pass
    return paths


def run(
    prompt: str,
    method: str = "keepkv",
    budget: float | int | str = 0.2,
    *,
    model: str | LoadedModel = "mini",
    max_new_tokens: int = 64,
    level: RecordLevel = "full",
    root: Path | str = "runs",
    compress_every: int = 1,
    record: Recording | str = "",
    seed: int = 0,
    **hyper_parameters: Any,
) -> Run:
    """Run one method over one prompt, record it, and return the opened run.

    Its tables are pandas frames: `.tokens`, `.steps`, `.events`, `.memory`. `record` limits the recorded arrays, such
    as "layers=0-3,8,heads=0,every=4". Raises UserError for bad input.
    """
    amount = Budget.parse(budget) if isinstance(budget, str) else Budget(budget)
    loaded = model if isinstance(model, LoadedModel) else None
    try:
        request = CompareRequest(
            prompt=prompt,
            model=model.name if isinstance(model, LoadedModel) else model,
            choices=(MethodChoice(method=method, budget=amount.amount, hyper_parameters=hyper_parameters),),
            max_new_tokens=max_new_tokens,
            level=level,
            compress_every=compress_every,
            record=Recording.parse(record) if isinstance(record, str) else record,
            seed=seed,
        )
    except ValidationError as error:
        raise UserError(in_one_sentence(error)) from None
    return open_run(compare(request, root, loaded=loaded)[0])


def _run_all(
    prepared: Prepared,
    root: Path,
    comparison_id: str,
    complete: dict[int, Path] | None,
    paths: list[Path],
    watch: Watch,
) -> None:
    """Decode the reference, run what is not `complete`, then time all runs; append to `paths` as runs start.

    `complete` is None unless the comparison is resumed.
    """
    request, loaded, ids = prepared.request, prepared.loaded, prepared.ids
    torch.manual_seed(request.seed)
    begun, steps = time.perf_counter(), 1 + request.max_new_tokens
    guarded = partial(memory_guard, request, loaded.device, ids.shape[1], root)
    with guarded("full cache"):
        reference = full_cache_reference(
            loaded, ids, request.max_new_tokens, watch, request.prefill_chunk, request.generation_config
        )
    for index, run in enumerate(prepared.runs):
        watch.reach(steps * (1 + 2 * index), run.choice.label)
        if complete is not None:
            if index in complete:
                paths.append(complete[index])
                continue
            shutil.rmtree(root / run_id_of(request, comparison_id, index), ignore_errors=True)  # an interrupted run
        record = record_of(prepared, index, comparison_id, len(reference.ids))
        with RunWriter(root, record) as writer:
            paths.append(writer.path)
            watch.run_id = record.run_id
            with guarded(run.choice.label):
                if index == 0 and request.level == "full":
                    _probe(prepared, reference, writer, watch)
                _run_one(ActiveRun(prepared, run, writer, watch), reference)
    with guarded("timing in turns"):
        allowed = TURNS_SHARE * (time.perf_counter() - begun)
        makers = [run.new_cache for run in prepared.runs]
        time_interleaved(paths, makers, loaded, ids, request.prefill_chunk, allowed, watch)
    watch.reach(watch.total, "done")


def _run_one(active: ActiveRun, reference: Reference) -> None:
    try:
        recorded = forced_pass(active, reference)
        timings = free_pass(active)
        active.writer.finish("complete", recorded_tokens_per_second=recorded, **timings)
    except Cancelled:
        active.writer.finish("cancelled", "stopped by the user")
        raise


def _probe(prepared: Prepared, reference: Reference, writer: RunWriter, watch: Watch) -> None:
    """Measure, once per comparison, how Gaussian hidden states are and how well GVote's sampled queries fit."""
    gvote = next((run.method for run in prepared.runs if isinstance(run.method, GVote)), GVote())
    watch.advance("probing the full cache", 0)
    request = prepared.request
    probe(
        prepared.loaded, prepared.ids, reference.ids, writer, gvote, request.seed, request.prefill_chunk, request.record
    )
