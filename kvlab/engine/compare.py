"""Compare methods on one prompt: each decodes the full cache's continuation (recorded) and its own."""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from kvlab.common.limits import TURNS_SHARE
from kvlab.core.budget import Budget
from kvlab.core.choice import DEFAULT_METHOD, MethodChoice
from kvlab.core.errors import UserError, is_out_of_memory
from kvlab.core.validation import in_one_sentence, path_of, quote_value
from kvlab.engine.comparison_passes import ComparisonPasses, Group, groups_of, most_together, num_steps
from kvlab.engine.interleaved_timing import time_interleaved
from kvlab.engine.out_of_memory import drop_frames, memory_guard, release_memory
from kvlab.engine.prepare import Prepared, prepare
from kvlab.engine.progress import Cancelled, Watch, download_reporter
from kvlab.engine.record import complete_runs
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import CompareRequest, Progress, RecordLevel
from kvlab.requests.recording import Recording
from kvlab.trace import Run, open_run, pending_requests
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

    With more than one choice the full cache always runs too, first. All runs share one pass over the prompt and one
    decode loop, except those of methods that compress within that pass. A stop (`cancelled`, or Ctrl-C) leaves finished
    runs complete and marks those in progress cancelled, then returns or re-raises. With `resume` the complete runs of
    `comparison_id` are kept and only the others run.
    Raises UserError for bad input before anything runs or is written. A run that fails is marked failed, the others
    end, then its error is raised; a pass that runs out of memory is repeated with half of its runs, and UserError is
    raised if a run alone does not fit.
    """
    if not isinstance(request, CompareRequest):
        raise UserError(f"compare needs a kvlab.requests.compare.CompareRequest, not {quote_value(request)}.")
    root = path_of(root, "The folder of runs")
    if request.is_batch:
        raise UserError(
            "A request with repeats or several prompts is several comparisons: pass it to kvlab.jobs.batch.run_batch."
        )
    comparison_id = check_id(comparison_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}")
    complete = complete_runs(request, root, comparison_id) if resume else {}
    if len(complete) == len(request.runs):
        pending_requests.remove_request(root, comparison_id)
        return list(complete.values())
    prepared = prepare(request, root, loaded, download_reporter(progress, cancelled))
    groups = groups_of(prepared, complete, most_together(prepared))
    watch = Watch(num_steps(prepared, groups), progress, cancelled, {"timing": TURNS_SHARE})
    paths: dict[int, Path] = dict(complete)
    if request.repeat is None:  # a batch resumes by itself
        pending_requests.save_request(root, comparison_id, request)
    try:
        _run_all(prepared, groups, ComparisonPasses(prepared, root, comparison_id, paths, watch))
        pending_requests.remove_request(root, comparison_id)
    except Cancelled:
        pass
    return [paths[index] for index in sorted(paths)]


def run(
    prompt: str,
    method: str = DEFAULT_METHOD,
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


def _run_all(prepared: Prepared, groups: list[Group], passes: ComparisonPasses) -> None:
    """Run all groups, then time their runs.

    A pass that does not fit in memory is repeated in halves. Raises the first error of a run after all others ended.
    """
    request = prepared.request
    loaded = prepared.loaded
    torch.manual_seed(request.seed)
    begun = time.perf_counter()
    while groups:
        group = groups.pop(0)
        try:
            passes.run(group)
            continue
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            drop_frames(error)
        passes.discard(group)
        gc.collect()
        release_memory(loaded.device)
        groups = [*group.halves(), *groups]
    with memory_guard(loaded.device, "timing in turns"):
        time_interleaved(passes.timed, loaded, TURNS_SHARE * (time.perf_counter() - begun), passes.watch)
    passes.watch.reach(passes.watch.total, "done")
    if passes.errors:
        raise passes.errors[0]
