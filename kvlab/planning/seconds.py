"""Estimate a comparison's duration from earlier runs of the model on this kind of device, else from a short probe."""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from pydantic import AwareDatetime, BaseModel, ValidationError

from kvlab.common.atomic_write import replace_file
from kvlab.common.formatting import format_duration
from kvlab.common.limits import MOST_PROMPT_LOGITS, TIMED_STEPS, TURNS_SHARE, turns_within
from kvlab.core.errors import UserError
from kvlab.planning.footprint import FULL, Footprint, SecondPass
from kvlab.planning.machine import Machine
from kvlab.planning.memory import shares
from kvlab.planning.recording_bytes import attention_row_bytes, states_written
from kvlab.planning.workload import Workload
from kvlab.trace.catalogue import list_runs
from kvlab.trace.record import read_record
from kvlab.trace.schema import RunRecord

FILE = ".speed.json"  # next to the runs: measured speed of each device
MOST_RUNS = 8
# The range given is the estimate divided by the first and multiplied by the second. On a CPU that others used too, 12
# comparisons of mini that the shares below were chosen on took 1.0 to 1.2 times what their own speeds say, and 1.3 to
# 1.7 times what a probe of the device says; nine others, of mini and two random models, .7 to 1.1 and .6 to 1.0 times,
# with the two shares of level full lowered after a first try of these nine. No GPU has been compared.
FROM_RUNS, FROM_PROBE, UNTRIED = (1.6, 1.6), (1.8, 1.8), (3.0, 3.0)
PREFILL_SHARE = 0.6  # of a matrix product's speed that a prompt's pass reaches: .50 to .71 for six shapes on a CPU
READ_SHARE = 0.6  # of a copy's speed at which a decode step reads weights: .54 to .62 for 0.5B in float32 on a CPU
LAYER_SECONDS = 8e-4  # a layer's operations take to be started, in a decode step
RECORDING = {"off": 1.0, "light": 1.1, "full": 2.4}  # a recorded decode step over a plain one
# Of mini with 1, 4 and 12 methods on 560 and 1,410 tokens, on a CPU. As shares of a pass over the prompt: a method's
# own work on it (.19 to .24), its recording at level full (.14 to .23), and the probe's results (1.5 to 4); both
# seemed smaller with one wider model. A further row of a decode step, as a share of `LAYER_SECONDS`: .55.
OWN_SHARE, RECORDED_SHARE, PROBE_PASSES, ROW_SHARE = 0.2, 0.15, 1.5, 0.55
ONCE = {"on_policy": False}  # a second pass that others share
WARM_STEPS = 4  # periods of decisions before those that are timed: 3, and 2 steps
WRITING, WRITTEN_BYTES = {"off": 0.05, "light": 0.1, "full": 0.2}, 2e8  # seconds for a run, and arrays a second
MEASURED = 1024, 64 * 2**20  # rows of the product, bytes of the copy
LASTS = timedelta(days=7)  # measuring takes a second or two, and a machine's load, clock and cooling change
TRIES, TRIED_SECONDS = 16, 1.0  # the best counts, as a busy machine is fast now and then
_measuring = threading.Lock()
_measured: dict[str, Speed] = {}  # by this process, for all folders


class Speed(BaseModel):
    """Measured operations per second of a matrix product and bytes copied per second; when, and with which versions."""

    operations: float
    bytes: float
    measured: AwareDatetime | None = None
    by: str = ""  # versions of torch and numpy

    @property
    def holds(self) -> bool:
        """Whether it was measured recently with the installed versions."""
        if self.measured is None or self.by != _versions():
            return False
        return timedelta(0) <= datetime.now(UTC) - self.measured <= LASTS

    @property
    def when(self) -> str:
        """` on YYYY-MM-DD`, or empty if the date is unknown."""
        return f" on {self.measured:%Y-%m-%d}" if self.measured else ""


@dataclass(frozen=True)
class Duration:
    """Seconds without loading the model, from `low` to `high`, and the basis of the estimate."""

    low: float
    high: float
    basis: str

    def __str__(self) -> str:
        return f"{format_duration(self.low, rough=True)} to {format_duration(self.high, rough=True)} ({self.basis})"


def duration(
    work: Workload, runs: Sequence[Footprint], machine: Machine, root: Path, comparisons: int = 1
) -> Duration | None:
    """Duration of the comparisons, each with one run per method; None if nothing is known of the device."""
    earlier = _earlier(work.model.name, machine, root)
    if earlier:
        seconds = comparisons * _from_runs(work, runs, earlier)
        count = "1 earlier run" if len(earlier) == 1 else f"{len(earlier)} earlier runs"
        basis, (below, above) = f"from {count} of this model on this kind of device", FROM_RUNS
        return Duration(seconds / below, seconds * above, basis)
    speed = known_speed(machine, root)
    if speed is None:
        return None
    prefill = _operations(work, work.tokens) / (PREFILL_SHARE * speed.operations)
    read = work.model.read_per_token * work.number
    step = read / (READ_SHARE * speed.bytes) + LAYER_SECONDS * work.model.layers
    seconds = comparisons * _total(work, runs, prefill, step, step * RECORDING[work.level])
    measured = f"a matrix product measured on this device{speed.when}, with nothing else running"
    basis = f"no run of this model here yet: from {measured}"
    below, above = FROM_PROBE if machine.device == "cpu" else UNTRIED
    return Duration(seconds / below, seconds * above, basis)


def known_speed(machine: Machine, root: Path) -> Speed | None:
    """The device's measured speed; a CPU is measured now if that is missing, old, or of other versions.

    The folder's note takes precedence over this process's. One thread measures while others wait: several at once would
    slow each other down.
    """
    speed = _noted(machine, root)
    if machine.device != "cpu" or (speed is not None and speed.holds):
        return speed
    with _measuring:
        speed = _noted(machine, root)
        if speed is None or not speed.holds:
            speed = keep_speed(machine, root, _host_speed())
    return speed


def _noted(machine: Machine, root: Path) -> Speed | None:
    try:
        return Speed.model_validate(json.loads((root / FILE).read_text(encoding="utf-8"))[_called(machine)])
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return _measured.get(_called(machine))


def _called(machine: Machine) -> str:
    """The device's key: its name, for a CPU with the threads this process may use."""
    if machine.device != "cpu":
        return machine.name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{machine.name}, {os.environ.get('OMP_NUM_THREADS', cores)} threads"


@lru_cache(maxsize=1)
def _versions() -> str:
    return ", ".join(f"{name} {_version(name)}" for name in ("torch", "numpy"))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def keep_speed(machine: Machine, root: Path, speed: Speed) -> Speed:
    """Store a device's measured speed next to the runs, if the folder exists."""
    name, speed = _called(machine), speed.model_copy(update={"measured": datetime.now(UTC), "by": _versions()})
    _measured[name] = speed
    if not root.is_dir():
        return speed
    try:
        speeds = json.loads((root / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        speeds = {}
    text = json.dumps((speeds if isinstance(speeds, dict) else {}) | {name: speed.model_dump(mode="json")})
    try:
        replace_file(root / FILE, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    except (OSError, UserError):
        return speed  # this process keeps it in memory
    return speed


def _host_speed() -> Speed:
    rows, size = MEASURED
    left, right = np.ones((rows, rows), np.float32), np.ones((rows, rows), np.float32)
    source = np.ones(size, np.uint8)
    product, copy = _best(lambda: left @ right), _best(source.copy)
    return Speed(operations=2 * rows**3 / product, bytes=2 * size / copy)


def _best(work: Callable[[], object]) -> float:
    taken: list[float] = []
    while len(taken) < 2 or (len(taken) < TRIES and sum(taken) < TRIED_SECONDS):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return min(taken)


def _earlier(model: str, machine: Machine, root: Path) -> list[RunRecord]:
    records: list[RunRecord] = []
    try:
        entries = [entry for entry in list_runs(root, status="complete") if entry.model == model]
        for entry in entries[:MOST_RUNS]:
            record = read_record(root / entry.run_id)
            if record.device.startswith(f"{machine.device}:") and record.seconds_prefill:
                records.append(record)
    except UserError:
        return records
    return records


def _from_runs(work: Workload, runs: Sequence[Footprint], earlier: Sequence[RunRecord]) -> float:
    # Without the method's second pass.
    read = [max((one.seconds_prefill or 1) - (one.seconds_rehearse or 0), 1e-6) for one in earlier]
    pace = [_operations(work, one.prompt_tokens) / seconds for one, seconds in zip(earlier, read, strict=True)]
    free = [1 / r.decode_tokens_per_second for r in earlier if r.decode_tokens_per_second]
    step = statistics.median(free) if free else LAYER_SECONDS * work.model.layers
    alike = [
        1 / r.recorded_tokens_per_second for r in earlier if r.recorded_tokens_per_second and r.level == work.level
    ]
    recorded = statistics.median(alike) if alike else step * RECORDING[work.level]
    return _total(work, runs, _operations(work, work.tokens) / statistics.median(pace), step, recorded)


def _total(work: Workload, runs: Sequence[Footprint], prefill: float, step: float, recorded: float) -> float:
    """One pass for all runs that share it and one for each other run; then what is written, and timed turns."""
    together = [holds for holds in runs if shares(work, holds)]
    others = [holds for holds in runs if not shares(work, holds)]
    beside = [] if any(not holds.compresses for holds in together) else [FULL]
    extra = recorded - step
    total = _pass(work, together, beside, prefill, step, extra)
    total += sum(_pass(work, [holds], [], prefill, step, extra) for holds in others)
    total += len(runs) * _writing(work, len(runs)) + (PROBE_PASSES * prefill if work.level == "full" else 0.0)
    turn = step * sum(min(TIMED_STEPS + WARM_STEPS * work.period(holds), work.new_tokens - 1) for holds in runs)
    return total + turn * (1 + turns_within(TURNS_SHARE * total - turn, turn))


def _pass(
    work: Workload, runs: Sequence[Footprint], beside: Sequence[Footprint], prefill: float, step: float, extra: float
) -> float:
    """Seconds of a pass over the prompt and its decode loop; `extra` is what recording adds to a run's step.

    Rows of the loop: each run's cache, the full cache `beside` them, and a copy of a compressed one for its own text.
    """
    own = sum(holds.compresses for holds in runs)
    prompt = prefill * (1 + OWN_SHARE * own + (RECORDED_SHARE * len(runs) if work.level == "full" else 0.0))
    plans = [holds.again for holds in runs if holds.again is not None]
    for index, again in enumerate(plans):
        alone, once = (_again(work, plan, prefill, step) for plan in (again, again.model_copy(update=ONCE)))
        first = all(not again.reads_as(other) for other in plans[:index])
        prompt += alone if first else alone - once
    row = ROW_SHARE * min(step, LAYER_SECONDS * work.model.layers)
    rows = len(runs) + len(beside) + own
    return prompt + work.new_tokens * (step + (rows - 1) * row + len(runs) * extra)


def _writing(work: Workload, runs: int) -> float:
    """Seconds to write one run's folder."""
    arrays = states_written(work, runs) + attention_row_bytes(work) if work.level == "full" else 0
    return WRITING[work.level] + arrays / WRITTEN_BYTES


def _again(work: Workload, again: SecondPass, prefill: float, step: float) -> float:
    """Seconds of a second pass: each token over the whole prompt and half its piece, and the generated tokens."""
    model, tokens = work.model, work.tokens
    weights = model.read_per_token - model.vocabulary * model.hidden
    columns = tokens + min(again.piece, tokens) / 2
    operations = 2.0 * weights * tokens + 4.0 * model.layers * model.heads * model.head_dim * tokens * columns
    readings = model.full_layers if again.on_policy else 1
    return readings * prefill * operations / _operations(work, work.tokens) + again.written * step


def _operations(work: Workload, tokens: int) -> float:
    """Operations of a prefill: two per parameter and token, causal attention, and the last token's logits if large."""
    model, read = work.model, work.model.read_per_token
    if tokens * model.vocabulary > MOST_PROMPT_LOGITS:
        read -= model.vocabulary * model.hidden
    return 2.0 * read * tokens + 2.0 * model.layers * model.heads * model.head_dim * tokens**2
