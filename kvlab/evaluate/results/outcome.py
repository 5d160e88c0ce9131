"""What running one prompt under one cache gave, and reading the cache's memory for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase

from kvlab.evaluate.scoring.survival import Survival
from kvlab.requests.compare import MethodChoice


class Loaded(Protocol):
    """What `kvlab.load_model` returns, as far as evaluation needs it."""

    @property
    def model(self) -> PreTrainedModel: ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    @property
    def name(self) -> str: ...


CacheMaker = Callable[[MethodChoice], Cache]


@dataclass(frozen=True)
class Memory:
    """What a cache held when its prompts were done, per prompt."""

    slots: float
    logical_tokens: int
    live_bytes: int
    allocated_bytes: int


@dataclass(frozen=True)
class Outcome:
    """One prompt under one cache; the likelihood measures are None for tasks that generate, `survival` for
    prompts that hide nothing."""

    prediction: str
    memory: Memory
    seconds: float
    prompt_seconds: float | None = None  # of these, until the prompt was read, rehearsed and compressed
    bits_per_byte: float | None = None
    kl: float | None = None
    top1_agreement: float | None = None
    survival: Survival | None = None


def read_memory(cache: Any, rows: int) -> Memory:
    """Return the memory of a cache that held `rows` prompts, as one prompt's share."""
    held = cache.memory()
    return Memory(held.live_slots, held.logical_tokens, held.live_bytes // rows, held.allocated_bytes // rows)


class Stopwatch:
    """Seconds of work; on a GPU the queue is waited for on both ends."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = 0.0

    @contextmanager
    def until(self, model: PreTrainedModel, passes: int) -> Iterator[list[float]]:
        """Notes, in the list it gives, what the first `passes` passes of the model take, one number each.

        What a cache does at the end of a pass, such as a rehearsal, is part of it.
        """
        took: list[float] = []
        begun = 0.0

        def begin(*_: object) -> None:
            nonlocal begun
            if len(took) < passes:
                self._settle()
                begun = time.perf_counter()

        def end(*_: object) -> None:
            if len(took) < passes:
                self._settle()
                took.append(time.perf_counter() - begun)

        hooks = [model.register_forward_pre_hook(begin), model.register_forward_hook(end)]
        try:
            yield took
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the time spent inside to `seconds`."""
        self._settle()
        start = time.perf_counter()
        yield
        self._settle()
        self.seconds += time.perf_counter() - start

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()
