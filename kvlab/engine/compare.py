"""Compare methods on one prompt: each decodes the full cache's continuation (recorded) and its own."""

from __future__ import annotations

import gc
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from kvlab.common.limits import TURNS_SHARE
from kvlab.core.budget import Budget
from kvlab.core.cache import make_cache
from kvlab.core.choice import DEFAULT_METHOD, FULL, MethodChoice
from kvlab.core.errors import UserError, is_out_of_memory
from kvlab.core.validation import in_one_sentence, path_of, quote_value
from kvlab.engine.active_run import ActiveRun, OwnText
from kvlab.engine.forward import chooser
from kvlab.engine.interleaved_timing import TimedRun, time_interleaved
from kvlab.engine.live_texts import LiveComparison
from kvlab.engine.out_of_memory import drop_frames, machine_of, memory_guard, release_memory
from kvlab.engine.prepare import Prepared, prepare
from kvlab.engine.probe import make_probe
from kvlab.engine.progress import Cancelled, Watch, download_reporter
from kvlab.engine.prompt import Reference
from kvlab.engine.record import complete_runs, record_of
from kvlab.engine.recording.recorder import ObserverGroup, Recorder
from kvlab.engine.shared_pass import SharedPass
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import CompareRequest, Progress, RecordLevel, run_id_of
from kvlab.requests.recording import Recording
from kvlab.trace import Run, RunWriter, open_run
from kvlab.trace import catalogue as pending_requests
from kvlab.trace.schema import check_id


@dataclass(frozen=True)
class Group:
    """Runs that share a pass, by index. `leads`: the full cache writes the reference in this pass."""

    indexes: tuple[int, ...]
    leads: bool


def groups_of(prepared: Prepared, complete: Mapping[int, Path], most: int) -> list[Group]:
    """Groups of up to `most` runs that are not `complete`, the reference's first, and last those that run alone."""
    missing = [index for index in range(len(prepared.runs)) if index not in complete]
    full = [index for index in missing if prepared.runs[index].choice.method == FULL.method][:1]
    together = [index for index in missing if prepared.runs[index].shares_passes] or full
    shared = [Group(tuple(together[first : first + most]), False) for first in range(0, len(together), most)]
    first = replace(shared.pop(0), leads=True) if shared else Group((), True)
    alone = [Group((index,), False) for index in missing if index not in together]
    return [first, *shared, *alone] if missing else []


def most_together(prepared: Prepared) -> int:
    """Runs whose caches and recordings fit in half of the free memory together, at least one.

    Each holds its cache three times (recorded, with its own text, and as settled after the prompt, to be timed), and at
    level `full` every key and value and the attention rows on the host.
    """
    request = prepared.request
    shape = prepared.shape
    steps = request.max_new_tokens
    tokens = prepared.ids.shape[1] + request.max_new_tokens
    head_tokens = shape.num_hidden_layers * shape.num_key_value_heads * tokens
    whole = 2 * head_tokens * shape.head_dim * prepared.loaded.model.dtype.itemsize
    budgets = [run.choice.budget for run in prepared.runs]
    slots = [tokens if isinstance(budget, str) else Budget(budget).slots(tokens) for budget in budgets]
    kept = [min(count / tokens, 1.0) for count in slots]
    caches = 3 * whole * sum(kept) / len(kept)
    recorded = whole + 4 * head_tokens * steps if request.level == "full" else 0
    machine = machine_of(prepared.loaded.device)
    on_device = machine.device_bytes / 2 / max(caches, 1)
    on_host = machine.host_bytes / 2 / max(recorded + (0 if machine.device == "cuda" else caches), 1)
    return max(int(min(on_device, on_host)), 1)


@dataclass(eq=False)
class ComparisonPasses:
    """Runs groups one after another; collects the `paths` of started runs, the runs to be timed, and errors."""

    prepared: Prepared
    root: Path
    comparison_id: str
    paths: dict[int, Path]
    watch: Watch
    live: LiveComparison
    reference: Reference = field(default_factory=Reference)
    timed: list[TimedRun] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    def run_all(self, groups: list[Group]) -> None:
        """Read the prompt and decode for all groups; a pass that does not fit in memory is repeated in halves.

        Errors of runs are kept in `errors`. Raises errors of the full cache that writes the reference.
        """
        torch.manual_seed(self.prepared.request.seed)
        while groups:
            group = groups.pop(0)
            try:
                self._run(group)
                continue
            except Exception as error:
                if not is_out_of_memory(error) or not (group.leads or len(group.indexes) > 1):
                    if group.leads or isinstance(error, Cancelled):
                        raise
                    self.errors.append(error)
                    continue
                drop_frames(error)
            # Remove the folders of runs that did not fit together, before they run again.
            for index in group.indexes:
                shutil.rmtree(self.paths.pop(index), ignore_errors=True)
            gc.collect()
            release_memory(self.prepared.loaded.device)
            middle = len(group.indexes) // 2  # the first half writes the reference for the second
            halves = (Group(group.indexes[:middle], group.leads), Group(group.indexes[middle:], False))
            groups = [*halves, *groups]

    def _run(self, group: Group) -> None:
        prepared = self.prepared
        if group.leads:
            self.reference = Reference()
        runs = [prepared.runs[index] for index in group.indexes]
        label = runs[0].choice.label if runs and runs[0].method.family != "reference" else "full cache"
        alone = len(group.indexes) <= 1
        guard = memory_guard(prepared.loaded.device, label) if alone else nullcontext()
        with ExitStack() as writers, guard:
            active = [self._start(index, writers) for index in group.indexes]
            leader = None
            probe = None
            if group.leads:
                # The full cache that writes the reference: that of a run, or one that is not recorded.
                leader = next((run.cache for run in active if run.run.choice.method == FULL.method), None)
                if leader is None:
                    leader = make_cache(prepared.loaded, "full", seed=prepared.request.seed)
                # The probe of the full cache is recorded with the comparison's first run at level `full`.
                first = next((run for run in active if run.run is prepared.runs[0]), None)
                if first is not None and prepared.request.level == "full":
                    methods = [run.method for run in prepared.runs]
                    tokens = prepared.ids.shape[1], prepared.request.max_new_tokens
                    probe = make_probe(prepared.loaded, *tokens, first.writer, methods, prepared.request.record)
            shared = SharedPass(prepared, active, leader, self.reference, self.watch, probe, self.live)
            try:
                shared.run()
            except Cancelled:
                for run in active:
                    if run.writer.record.status == "running":
                        run.writer.finish("cancelled", "stopped by the user")
                raise
            self.errors += shared.errors
            for run in shared.runs:
                if run.prompt_cache is not None and run.own_text.ids:
                    steps = len(run.forced) - 1
                    recording = None if run.recorder is None or steps < 1 else run.observers.seconds / steps
                    self.timed.append(TimedRun(run.writer.path, run.prompt_cache, run.own_text.ids[0], recording))

    def _start(self, index: int, writers: ExitStack) -> ActiveRun:
        """Create the run's folder, recorder and cache; `writers` closes the folder."""
        prepared = self.prepared
        request = self.prepared.request
        shutil.rmtree(self.root / run_id_of(request, self.comparison_id, index), ignore_errors=True)  # interrupted
        record = record_of(prepared, index, self.comparison_id, request.max_new_tokens)
        writer = writers.enter_context(RunWriter(self.root, record))
        self.paths[index] = writer.path
        self.watch.run_id = record.run_id
        self.watch.advance("prompt", 0)
        recorder = None
        if request.level != "off":
            steps = max(request.max_new_tokens - 1, 0)
            recorded = record.recorded_states, record.attention_rows
            recorder = Recorder(writer, request.level, prepared.ids.shape[1], steps, *recorded)
        observers = ObserverGroup([] if recorder is None else [recorder])
        run = prepared.runs[index]
        choose = chooser(prepared.loaded, prepared.ids, request.max_new_tokens, request.generation_config)
        cache = run.new_cache(timed=True, observer=None if recorder is None else observers)
        return ActiveRun(prepared, run, writer, cache, recorder, observers, OwnText(choose))


def compare(
    request: CompareRequest,
    root: Path | str = "runs",
    *,
    comparison_id: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    loaded: LoadedModel | None = None,
    resume: bool = False,
    answered: Callable[[list[Path]], None] | None = None,
) -> list[Path]:
    """Run every choice of `request` over its prompt and return the run folders, in order.

    With more than one choice the full cache always runs too, first. All runs share one pass over the prompt and one
    decode loop, except those of methods that compress within that pass. A stop (`cancelled`, or Ctrl-C) leaves finished
    runs complete and marks those in progress cancelled, then returns or re-raises. With `resume` the complete runs of
    `comparison_id` are kept and only the others run. `answered` gets the run folders once every run has its answer,
    before speeds are measured.
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
        if answered is not None:
            answered(list(complete.values()))
        return list(complete.values())
    prepared = prepare(request, root, loaded, download_reporter(progress, cancelled))
    groups = groups_of(prepared, complete, most_together(prepared))
    # Steps of progress by phase: layers of the prompt's passes, decode steps, and first readings of speed.
    chunk = prepared.request.prefill_chunk
    tokens = prepared.ids.shape[1]
    prompt = prepared.shape.num_hidden_layers * -(-tokens // (chunk or tokens))
    watch = Watch(
        {
            "prompt": len(groups) * prompt,
            "decoding": len(groups) * prepared.request.max_new_tokens,
            "timing": sum(len(group.indexes) for group in groups),
        },
        progress,
        cancelled,
        {"timing": TURNS_SHARE},
    )
    paths: dict[int, Path] = dict(complete)
    passes = ComparisonPasses(prepared, root, comparison_id, paths, watch, LiveComparison(prepared))
    begun = time.perf_counter()
    if request.repeat is None:  # a batch resumes by itself
        pending_requests.save_request(root, comparison_id, request)
    try:
        passes.run_all(groups)
        if not passes.errors:
            pending_requests.remove_request(root, comparison_id)
            if answered is not None:
                answered([paths[index] for index in sorted(paths)])
        with memory_guard(prepared.loaded.device, "timing in turns"):
            allowed = TURNS_SHARE * (time.perf_counter() - begun)
            time_interleaved(passes.timed, prepared.loaded, allowed, watch)
        watch.done = watch.total  # a continuation may have ended early
        watch.advance("done", 0)
        if passes.errors:
            raise passes.errors[0]
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
