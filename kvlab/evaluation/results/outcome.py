"""The outcome of one prompt with one cache: answer, memory and time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache
from kvlab.core.cache.cache import CacheMemory
from kvlab.core.cache.settings import synchronize
from kvlab.core.choice import MethodChoice
from kvlab.evaluation.scoring.survival import Survival

CacheMaker = Callable[[MethodChoice], CompressedCache]


@dataclass(frozen=True)
class Memory:
    """A cache's footprint after its prompts, per prompt."""

    slots: float
    logical_tokens: int
    live_bytes: int
    allocated_bytes: int
    bytes_read: int  # by a decode step, mean over the steps


@dataclass(frozen=True)
class Outcome:
    """One prompt with one cache; likelihoods are None for generating tasks, `survival` without hidden tokens."""

    prediction: str
    memory: Memory
    seconds: float
    prompt_seconds: float | None = None  # of these, to read, read again and compress the prompt alone
    bits_per_byte: float | None = None
    kl: float | None = None
    top1_agreement: float | None = None
    survival: Survival | None = None
    answer_tokens: int | None = None  # generated, the one that ends an answer included
    loop_tokens: int | None = None  # of these, at the end, one piece again and again


def read_memory(cache: Any, prompts: int) -> list[Memory]:
    """The footprint of each of the `prompts` of a cache, which have equally many rows (beams) one after another."""
    every: list[CacheMemory] = cache.memory_by_row()
    beams = len(every) // prompts
    found = []
    for first in range(0, len(every), beams):
        rows = every[first : first + beams]
        slots = sum(row.live_slots for row in rows) / beams
        held, allocated, read = (  # bytes of layers that are not compressed included
            sum(getattr(row, name) + row.sliding_bytes for row in rows)
            for name in ("live_bytes", "allocated_bytes", "bytes_read")
        )
        found.append(Memory(slots, rows[0].logical_tokens, held, allocated, read))
    return found


@dataclass
class Stopwatch:
    """Measure seconds of work, synchronising the device at both ends."""

    device: torch.device
    seconds: float = 0.0

    @contextmanager
    def until(self, model: PreTrainedModel, passes: int) -> Iterator[list[float]]:
        """Yield a list that receives the times of begin and end of each of the model's first `passes` forward passes.

        Work of the cache at the end of a pass, such as a second reading, is included.
        """
        times: list[float] = []

        def note_time(*_: object) -> None:
            if len(times) < 2 * passes:
                synchronize(self.device)
                times.append(time.perf_counter())

        hooks = [model.register_forward_pre_hook(note_time), model.register_forward_hook(note_time)]
        try:
            yield times
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the time spent inside to `seconds`."""
        synchronize(self.device)
        start = time.perf_counter()
        yield
        synchronize(self.device)
        self.seconds += time.perf_counter() - start
