"""Which runs of a comparison share a pass, and the pass of such a group from run folders to finished runs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvlab.core.budget import Budget
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.choice import FULL
from kvlab.core.errors import is_out_of_memory
from kvlab.engine.active_run import ActiveRun, OwnText
from kvlab.engine.interleaved_timing import TimedRun
from kvlab.engine.live_texts import LiveComparison
from kvlab.engine.out_of_memory import machine_of, memory_guard
from kvlab.engine.prepare import Prepared
from kvlab.engine.probe import Probe, make_probe
from kvlab.engine.progress import Cancelled, Watch
from kvlab.engine.prompt import Reference
from kvlab.engine.record import record_of
from kvlab.engine.recording.recorder import ObserverGroup, Recorder
from kvlab.engine.shared_pass import SharedPass, chooser_of
from kvlab.requests.compare import run_id_of
from kvlab.trace import RunWriter


@dataclass(frozen=True)
class Group:
    """Runs that share a pass, by index. `leads`: the full cache writes the reference in this pass."""

    indexes: tuple[int, ...]
    leads: bool

    def halves(self) -> list[Group]:
        """The group as two smaller ones; the first writes the reference for the second."""
        middle = len(self.indexes) // 2
        return [Group(self.indexes[:middle], self.leads), Group(self.indexes[middle:], False)]


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


def num_steps(prepared: Prepared, groups: Sequence[Group]) -> dict[str, int]:
    """Steps of progress by phase: layers of the prompt's passes, decode steps, and first readings of speed."""
    chunk = prepared.request.prefill_chunk
    tokens = prepared.ids.shape[1]
    prompt = prepared.shape.num_hidden_layers * -(-tokens // (chunk or tokens))
    return {
        "prompt": len(groups) * prompt,
        "decoding": len(groups) * prepared.request.max_new_tokens,
        "timing": sum(len(group.indexes) for group in groups),
    }


@dataclass(eq=False)
class ComparisonPasses:
    """Runs groups one after another; collects the `paths` of started runs, the runs to be timed, and errors."""

    prepared: Prepared
    root: Path
    comparison_id: str
    paths: dict[int, Path]
    watch: Watch
    reference: Reference = field(default_factory=Reference)
    timed: list[TimedRun] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.live = LiveComparison(self.prepared)

    def run(self, group: Group) -> None:
        """Read the prompt and decode for all runs of the group.

        Errors of runs are kept in `errors`. Raises errors of the full cache, and out-of-memory errors of several runs.
        """
        try:
            self._run(group)
        except Exception as error:
            several = is_out_of_memory(error) and len(group.indexes) > 1
            if isinstance(error, Cancelled) or group.leads or several:
                raise
            self.errors.append(error)

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
            leader, probe = (self._leader(active), self._probe(active)) if group.leads else (None, None)
            shared = SharedPass(prepared, active, leader, self.reference, self.watch, probe, self.live)
            try:
                shared.run()
            except Cancelled:
                for run in active:
                    if run.writer.record.status == "running":
                        run.writer.finish("cancelled", "stopped by the user")
                raise
            self.errors += shared.errors
            self.timed += [timed for run in shared.runs if (timed := self._timed(run)) is not None]

    def discard(self, group: Group) -> None:
        """Remove the folders of runs that did not fit in memory together, before they run again."""
        for index in group.indexes:
            shutil.rmtree(self.paths.pop(index), ignore_errors=True)

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
        cache = run.new_cache(timed=True, observer=None if recorder is None else observers)
        return ActiveRun(prepared, run, writer, cache, recorder, observers, OwnText(chooser_of(prepared)()))

    def _leader(self, active: list[ActiveRun]) -> CompressedCache:
        """The full cache that writes the reference: that of a run, or one that is not recorded."""
        own = next((run.cache for run in active if run.run.choice.method == FULL.method), None)
        return make_cache(self.prepared.loaded, "full", seed=self.prepared.request.seed) if own is None else own

    def _probe(self, active: list[ActiveRun]) -> Probe | None:
        """Add the probe of the full cache to the comparison's first run at level `full`."""
        prepared = self.prepared
        request = self.prepared.request
        first = next((run for run in active if run.run is prepared.runs[0]), None)
        if first is None or request.level != "full":
            return None
        methods = [run.method for run in prepared.runs]
        tokens = prepared.ids.shape[1], request.max_new_tokens
        return make_probe(prepared.loaded, *tokens, first.writer, methods, request.record)

    def _timed(self, run: ActiveRun) -> TimedRun | None:
        if run.settled is None or not run.own.ids:
            return None
        return TimedRun(run.writer.path, run.settled, run.own.ids[0], run.recording_seconds())
