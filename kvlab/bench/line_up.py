"""Who takes part: the full caches that a method has to beat, and the methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, StaticCache

from kvlab.bench.competitors import FULL, Contender, Load, SlotContender
from kvlab.bench.models import BenchModel
from kvlab.bench.race import Skipped
from kvlab.bench.request import BenchRequest


class PlainContender(Contender):
    """Plain transformers: its growing cache and its sdpa attention."""

    attention = "sdpa"
    label = "full: transformers sdpa"

    def make_cache(self) -> Cache:
        """transformers' own."""
        return DynamicCache(config=self.model.model.config)

    def prepare(self) -> None:
        """Fill it; Falcon does its attention in a way of its own that kvlab has replaced."""
        if self.model.config.model_type == "falcon":
            raise Skipped("kvlab replaces Falcon's own attention, so the plain one is not there to be measured")
        super().prepare()


class StaticContender(PlainContender):
    """Plain transformers with a static cache, the step compiled into a CUDA graph."""

    label = "full: static cache, compiled"
    warmup = 4
    compile_options: dict[str, Any] = {"mode": "reduce-overhead", "dynamic": False}  # noqa: RUF012

    def __init__(self, model: BenchModel, load: Load, request: BenchRequest) -> None:
        super().__init__(model, load, request)
        self._compiled: Any = None

    def make_cache(self) -> Cache:
        """One with room for the context and every step to come, and no more: it attends over all of its room."""
        return StaticCache(config=self.model.model.config, max_cache_len=self._room)

    @property
    def expected_bytes(self) -> int:
        """The room is taken at once."""
        return self.model.token_bytes * self.load.batch * self._room

    @property
    def _room(self) -> int:
        request = self.request
        return self.load.context + 1 + self.warmup + request.warm_steps + request.repeats * request.timed_steps

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Without gradients; captured graphs do not take inference tensors."""
        with self.model.attention(self.attention), torch.no_grad():
            yield

    def prepare(self) -> None:
        """Fill it and compile; what the compiler cannot do is said and skipped."""
        if self._compiled is None:
            torch.compiler.reset()  # else the shapes raced before count towards its limit, and it falls back to eager
            self._compiled = torch.compile(self._next, **self.compile_options)
        super().prepare()
        try:
            self.step()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise Skipped(f"the step could not be compiled: {first[:160]}") from error

    def step(self) -> None:
        """One captured step; the token is copied out of the graph's own memory."""
        torch.compiler.cudagraph_mark_step_begin()
        self.token = self._compiled(self.token, self.cache).clone()

    def _next(self, token: Tensor, cache: Cache) -> Tensor:
        output = self.model.model(token, past_key_values=cache, use_cache=True)
        return output.logits[:, -1].argmax(-1, keepdim=True)


def baselines(model: BenchModel, load: Load, request: BenchRequest) -> list[Contender]:
    """The full caches: kvlab's own, transformers', and the compiled one where compiling helps."""
    own: list[Contender] = [SlotContender(model, load, request, FULL), PlainContender(model, load, request)]
    # The compiled one is first: it makes the compiler forget what it knew, which must not hit anybody already warm.
    return [StaticContender(model, load, request), *own] if model.device.type == "cuda" else own


def contenders(model: BenchModel, load: Load, request: BenchRequest) -> list[Contender]:
    """The baselines, then every method asked for."""
    methods = [choice for choice in request.choices_run() if choice.method != "full"]
    return [*baselines(model, load, request), *(SlotContender(model, load, request, choice) for choice in methods)]
