"""The baselines of a benchmark (full caches), and the list of all contenders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, StaticCache

from kvlab.bench.competitors import Contender, Load, SlotContender
from kvlab.bench.models import BenchModel
from kvlab.bench.race import Skipped
from kvlab.bench.request import BenchRequest
from kvlab.requests.compare import FULL


class PlainContender(Contender):
    """Plain transformers: DynamicCache and sdpa attention."""

    attention = "sdpa"
    label = "full: transformers sdpa"

    def make_cache(self) -> Cache:
        return DynamicCache(config=self.model.model.config)

    def prepare(self) -> None:
        """Fill it; kvlab replaces Falcon's attention, so Falcon is skipped."""
        if self.model.config.model_type == "falcon":
            raise Skipped("kvlab replaces Falcon's attention, so the plain one cannot be measured")
        super().prepare()


class StaticContender(PlainContender):
    """Plain transformers with a static cache and a compiled step (CUDA graph)."""

    label = "full: static cache, compiled"
    warmup = 4
    compile_options: dict[str, Any] = {"mode": "reduce-overhead", "dynamic": False}  # noqa: RUF012

    def __init__(self, model: BenchModel, load: Load, request: BenchRequest) -> None:
        super().__init__(model, load, request)
        self._compiled: Any = None

    def make_cache(self) -> Cache:
        return StaticCache(config=self.model.model.config, max_cache_len=self._capacity)

    @property
    def expected_bytes(self) -> int:
        """The whole capacity is allocated at once."""
        return self.model.token_bytes * self.load.batch * self._capacity

    @property
    def _capacity(self) -> int:
        request = self.request
        return self.load.context + 1 + self.warmup + request.warm_steps + request.repeats * request.timed_steps

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Without gradients; captured graphs do not accept inference tensors."""
        with self.model.attention(self.attention), torch.no_grad():
            yield

    def prepare(self) -> None:
        """Fill it and compile; raises Skipped if compiling fails."""
        if self._compiled is None:
            torch.compiler.reset()  # else earlier shapes count towards its limit, and it falls back to eager
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
        """One captured step; the token is copied out of the graph's memory."""
        torch.compiler.cudagraph_mark_step_begin()
        self.token = self._compiled(self.token, self.cache).clone()

    def _next(self, token: Tensor, cache: Cache) -> Tensor:
        output = self.model.model(token, past_key_values=cache, use_cache=True)
        return output.logits[:, -1].argmax(-1, keepdim=True)


def baselines(model: BenchModel, load: Load, request: BenchRequest) -> list[Contender]:
    """The full caches: kvlab's, transformers', and on CUDA the compiled one."""
    own: list[Contender] = [SlotContender(model, load, request, FULL), PlainContender(model, load, request)]
    # The compiled one is first: it resets the compiler, which must not affect contenders that are already warm.
    return [StaticContender(model, load, request), *own] if model.device.type == "cuda" else own


def contenders(model: BenchModel, load: Load, request: BenchRequest) -> list[Contender]:
    """The baselines, and every compressed method of the request."""
    methods = [choice for choice in request.choices_run() if choice.method != "full"]
    return [*baselines(model, load, request), *(SlotContender(model, load, request, choice) for choice in methods)]
