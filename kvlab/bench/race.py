"""Time several contenders in turns in one process, so that noise on the machine affects all of them alike."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from kvlab.bench.device import free_bytes, seconds_of
from kvlab.bench.rows import Status
from kvlab.core.errors import UserError, is_out_of_memory
from kvlab.engine.energy import energy_counter, joule_meter
from kvlab.engine.out_of_memory import release_memory

RESIDENT_SHARE = 0.8


class Skipped(Exception):
    """This contender cannot run here, for the reason in the message."""


class Racer(Protocol):
    """An object that can be prepared, stepped and released."""

    warmup: int
    expected_bytes: int
    live_bytes: int  # of cache that a step reads, once prepared
    at_work: Callable[[], AbstractContextManager[None]]  # around `prepare` and `step`
    prepare: Callable[[], None]
    step: Callable[[], None]
    release: Callable[[], None]


@dataclass
class Outcome:
    """Result of one contender: seconds per step of each repeat, or why there are none.

    `processor` is the same in process time, which on a CPU is unaffected by other programs.
    """

    samples: list[float] = field(default_factory=list)
    live_bytes: int = 0
    status: Status = "ok"
    note: str = ""
    processor: list[float] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)  # per step of each repeat; empty without a counter


def race(
    racers: Sequence[Racer],
    device: torch.device,
    *,
    repeats: int,
    steps: int,
    warmup: int,
    resident: bool | None = None,
) -> list[Outcome]:
    """One outcome per racer, in order: in each of `repeats` rounds every racer is timed over `steps` steps.

    If all fit in memory together they stay prepared; else each round prepares and releases them one by one. A racer
    that runs out of memory or raises `Skipped` drops out; the others continue.
    """
    if resident is None:
        resident = sum(racer.expected_bytes for racer in racers) < RESIDENT_SHARE * free_bytes(device)
    outcomes = [Outcome() for _ in racers]
    ready: set[int] = set()
    try:
        for _ in range(repeats):
            for index, (racer, outcome) in enumerate(zip(racers, outcomes, strict=True)):
                if outcome.status == "ok":
                    _turn(racer, outcome, device, steps, warmup, index not in ready)
                    ready.add(index)
                if outcome.status != "ok" or not resident:
                    racer.release()
                    ready.discard(index)
    finally:
        for racer in racers:
            racer.release()
    return outcomes


def _turn(racer: Racer, outcome: Outcome, device: torch.device, steps: int, warmup: int, prepare: bool) -> None:
    try:
        with racer.at_work():
            if prepare:
                racer.prepare()
                for _ in range(warmup + racer.warmup):
                    racer.step()
                outcome.live_bytes = racer.live_bytes
            joules_since_now = joule_meter(energy_counter(device))
            before = time.process_time()
            seconds = seconds_of(racer.step, device, steps)
            outcome.processor.append((time.process_time() - before) / steps)
            if (spent := joules_since_now()) is not None:
                outcome.joules.append(spent / steps)
        outcome.samples.append(seconds / steps)
        outcome.note = getattr(racer, "remark", "")
    except Exception as error:
        outcome.status, outcome.note = failure(error)
        outcome.samples = []
        if outcome.status == "oom":
            release_memory(device)


def failure(error: Exception) -> tuple[Status, str]:
    """Status and note of a contender that this error ended: skipped, refused by the model, or out of memory.

    Raises any other.
    """
    if isinstance(error, Skipped | UserError):
        return "skipped", str(error)
    if not is_out_of_memory(error):
        raise error
    error.__traceback__ = None  # its frames hold the tensors that did not fit
    return "oom", (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
