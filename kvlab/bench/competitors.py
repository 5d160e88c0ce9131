"""Contenders of a benchmark: ways of decoding over a cache, of methods and, as baselines, of full caches."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, StaticCache

from kvlab.bench.caches import fill, live_bytes, random_token
from kvlab.bench.device import check_room
from kvlab.bench.models import BenchModel
from kvlab.bench.race import Skipped
from kvlab.bench.request import BenchRequest
from kvlab.core import FULL, Budget, MethodChoice, UserError
from kvlab.core.attention import ATTENTION_NAME
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.chunked_prefill import chunk_sizes
from kvlab.core.cache.settings import Observer
from kvlab.core.methods import make_method
from kvlab.engine.interleaved_timing import CapturedDecoder
from kvlab.engine.out_of_memory import release_memory


@dataclass(frozen=True)
class Load:
    """Content of a cache before the first timed step: `prompt` tokens per row, then `generated` ones."""

    batch: int
    prompt: int
    generated: int = 0
    asked: int = 0  # the requested prompt length, before shorten

    @property
    def context(self) -> int:
        return self.prompt + self.generated


class Contender(ABC):
    """A way of decoding: `prepare` fills a cache, `step` decodes one token per row, `release` frees the cache."""

    attention = ATTENTION_NAME
    without_gradients: type[AbstractContextManager[None]] = torch.inference_mode
    warmup = 0  # extra warm-up steps
    is_baseline = True
    label: str

    def __init__(self, model: BenchModel, load: Load, request: BenchRequest) -> None:
        self.model = model
        self.load = load
        self.request = request
        self.capacity = load.context + request.timed_steps  # tokens a row
        self.cache: Any = None
        self.token: Tensor | None = None
        self.decoder: CapturedDecoder | None = None

    @abstractmethod
    def make_cache(self) -> Cache: ...

    @property
    def expected_bytes(self) -> int:
        """Upper bound of its memory, to be checked before allocation."""
        return self.model.token_bytes * self.load.batch * self.capacity

    @property
    def live_bytes(self) -> int:
        """Bytes of cache that a step reads."""
        return live_bytes(self.cache, self.load.context)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Context for preparing and stepping; not timed."""
        with self.model.attention(self.attention), self.without_gradients():
            yield

    def check(self) -> None:
        """Raise MemoryError if it may not fit the host, and Skipped if it cannot run."""
        check_room(self.expected_bytes, self.model.device)

    def prepare(self) -> None:
        """Fill a new cache and draw the first token."""
        self.check()
        self.cache = self.make_cache()
        if self.request.fill == "synthetic":
            load = self.load
            if self.is_baseline:  # its decisions do not depend on what was generated
                load = Load(load.batch, load.context)
            fill(self.model, self.cache, load.batch, load.prompt, load.generated, self.request.seed)
        else:
            self.prefill()
        self.token = random_token(self.model, self.load.batch)

    def prefill(self) -> None:
        """Run a real prompt of random tokens."""
        ids = random_token(self.model, self.load.batch, self.load.context, self.request.seed)
        tokens = self.load.context
        chunk = self.request.prefill_chunk or tokens
        if isinstance(self.cache, CompressedCache):
            try:
                sizes = self.cache.expect(tokens, chunk)
            except UserError as error:
                raise Skipped(str(error)) from None
        else:
            sizes = chunk_sizes(tokens, chunk)
        for part in ids.split(sizes, dim=1):
            self.model.model(part, past_key_values=self.cache, use_cache=True, logits_to_keep=1)

    def step(self) -> None:
        output = self.model.model(self.token, past_key_values=self.cache, use_cache=True)
        self.token = output.logits[:, -1].argmax(-1, keepdim=True)

    def release(self) -> None:
        self.cache = self.token = self.decoder = None
        release_memory(self.model.device)


class SlotContender(Contender):
    """A method on kvlab's cache; `full` is a baseline."""

    def __init__(self, model: BenchModel, load: Load, request: BenchRequest, choice: MethodChoice) -> None:
        super().__init__(model, load, request)
        self.choice = choice
        self.is_baseline = choice.method == "full"
        self.label = "full: kvlab" if self.is_baseline else method_label(choice)
        self.observer: Observer | None = None
        self.captures = request.capture == "on" or (
            request.capture == "auto" and model.device.type == "cuda" and request.placement == "single"
        )
        # Each kind of step is captured on its second occurrence, the one with a decision after two periods.
        self.warmup = 3 * request.compress_every + 3 if self.captures else 0

    @property
    def expected_bytes(self) -> int:
        """The compressed cache plus one layer's uncompressed states."""
        kept = min(1.0, 1.3 * Budget(self.choice.budget).slots(self.load.prompt) / self.load.context)
        layers = self.model.shape.num_hidden_layers
        return int(super().expected_bytes * min(1.0, kept + 2 / layers))

    def make_cache(self) -> Cache:
        method = make_method(self.choice.method, **self.choice.hyper_parameters)
        return make_cache(
            self.model.model,
            method,
            self.choice.budget,
            compress_every=self.request.compress_every,
            seed=self.request.seed,
            observer=self.observer,
        )

    def prepare(self) -> None:
        """Fill a new cache, and set up captured decoding if requested."""
        super().prepare()
        if self.captures:
            self.decoder = CapturedDecoder(self.model.model, self.cache)

    def step(self) -> None:
        if self.decoder is None or self.token is None:
            super().step()
        else:
            self.token = self.decoder(self.token).argmax(-1, keepdim=True)

    @property
    def remark(self) -> str:
        if self.decoder is None:
            return ""
        reason = self.decoder.why_not or "its table grows"
        return "captured steps" if self.decoder.replayed else f"not captured: {reason}"


def method_label(choice: MethodChoice) -> str:
    """Such as `keepkv` or `keepkv:rule=paper`."""
    return ":".join(
        [choice.method, *(f"{n}={json.dumps(v).strip(chr(34))}" for n, v in choice.hyper_parameters.items())]
    )


class PlainContender(Contender):
    """Plain transformers: DynamicCache and sdpa attention."""

    attention = "sdpa"
    label = "full: transformers sdpa"

    def make_cache(self) -> Cache:
        return DynamicCache(config=self.model.model.config)

    def check(self) -> None:
        if self.model.config.model_type == "falcon":
            raise Skipped("kvlab replaces Falcon's attention, so the plain one cannot be measured")
        super().check()


class StaticContender(PlainContender):
    """Plain transformers with a static cache and a compiled step (CUDA graph)."""

    label = "full: static cache, compiled"
    warmup = 4
    without_gradients = torch.no_grad  # captured graphs do not accept inference tensors
    compile_options: dict[str, Any] = {"mode": "reduce-overhead", "dynamic": False}  # noqa: RUF012

    def __init__(self, model: BenchModel, load: Load, request: BenchRequest) -> None:
        super().__init__(model, load, request)
        self._compiled: Any = None
        # The whole capacity is allocated at once.
        self.capacity = load.context + 1 + self.warmup + request.warm_steps + request.repeats * request.timed_steps

    def make_cache(self) -> Cache:
        return StaticCache(config=self.model.model.config, max_cache_len=self.capacity)

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


def contenders(model: BenchModel, load: Load, request: BenchRequest) -> list[Contender]:
    """The full caches (kvlab's, transformers', and on CUDA the compiled one), and every method of the request."""
    methods = [choice for choice in request.choices_run() if choice.method != "full"]
    racers: list[Contender] = [SlotContender(model, load, request, FULL), PlainContender(model, load, request)]
    if model.device.type == "cuda":
        # The first: it resets the compiler, which must not affect contenders that are already warm.
        racers.insert(0, StaticContender(model, load, request))
    return [*racers, *(SlotContender(model, load, request, choice) for choice in methods)]
