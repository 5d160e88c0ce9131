"""Mode `overhead`: the cost of recording per decode step, as ratios to no recording."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from kvlab.bench.bench import Bench, loads, ratio_row, timing_rows
from kvlab.bench.competitors import Load, SlotContender
from kvlab.bench.device import spread
from kvlab.bench.fill import random_token
from kvlab.bench.models import BenchModel
from kvlab.bench.request import BenchRequest
from kvlab.bench.rows import Row
from kvlab.core.choice import MethodChoice
from kvlab.engine.environment import device_name, versions
from kvlab.engine.recording.recorder import Recorder
from kvlab.requests.compare import RecordLevel
from kvlab.trace import RunWriter
from kvlab.trace.schema import RunRecord

LEVELS: tuple[RecordLevel, ...] = ("off", "light", "full")


class RecordedStep(SlotContender):
    """A method that decodes while recording at one level, into its own run folder."""

    def __init__(
        self, model: BenchModel, load: Load, request: BenchRequest, choice: MethodChoice, level: RecordLevel, root: Path
    ) -> None:
        super().__init__(model, load, request, choice)
        self.level = level
        self.root = root
        # a recorder must be called at every step, so none is replayed
        self.captures = False
        self.warmup = 0
        self.recorder: Recorder | None = None

    def prepare(self) -> None:
        """Record a real prompt, as the shadow must see every token."""
        self.check()
        if self.level != "off":
            writer = RunWriter(self.root, self._record())
            steps = self.request.warm_steps + self.request.repeats * self.request.timed_steps
            self.recorder = self.observer = Recorder(writer, self.level, self.load.context, steps)
        self.cache = self.make_cache()
        self.prefill()
        self.token = random_token(self.model, self.load.batch)
        if self.recorder is not None:
            self.recorder.end_step(self.cache)

    def step(self) -> None:
        super().step()
        if self.recorder is not None:
            self.recorder.end_step(self.cache)

    def release(self) -> None:
        if self.recorder is not None:
            self.recorder.writer.finish("complete")
            self.recorder = self.observer = None
        super().release()

    def _record(self) -> RunRecord:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return RunRecord(
            run_id=f"{self.choice.method}-{self.level}-{self.load.context}-{self.choice.budget}",
            comparison_id="bench",
            created=now,
            status="running",
            prompt="",
            method=self.choice.method,
            budget=self.choice.budget,
            hyper_parameters=self.choice.hyper_parameters,
            label=self.label,
            level=self.level,
            max_new_tokens=self.request.repeats * self.request.timed_steps,
            compress_every=self.request.compress_every,
            seed=self.request.seed,
            device=device_name(self.model.device),
            model=self.model.shape,
            versions=versions(),
            prompt_tokens=self.load.context,
        )


def measure(bench: Bench) -> Iterator[Row]:
    """Each method at each level in turns: one row per level and per ratio. A run records one prompt: batch 1."""
    for load in loads(bench.request.model_copy(update={"batches": (1,)})):
        for choice in bench.request.choices_run():
            yield from _levels(bench, load, choice)


def _levels(bench: Bench, load: Load, choice: MethodChoice) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="kvlab-bench-") as folder:
        racers = [RecordedStep(bench.model, load, bench.request, choice, level, Path(folder)) for level in LEVELS]
        outcomes = bench.race(racers, resident=True)
    off = spread(outcomes[0].samples) if outcomes[0].samples else None
    for racer, outcome in zip(racers, outcomes, strict=True):
        least = bench.bytes_seconds(bench.model.bytes_per_pass + outcome.live_bytes)
        step, _ = timing_rows(bench, racer, outcome, least, off, is_full=False)
        yield replace(step, figure=f"decode step, recording {racer.level}", method=_name(racer), ratio_to_full=None)
    for racer, outcome in list(zip(racers, outcomes, strict=True))[1:]:
        yield ratio_row(bench, racer, f"recording {racer.level} / off", outcome, outcomes[0], method=_name(racer))


def _name(racer: RecordedStep) -> str:
    return "full" if racer.is_baseline else racer.label
