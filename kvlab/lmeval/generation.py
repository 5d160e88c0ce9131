"""Text generation under a compressed cache with lm-eval's stop strings and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from transformers import Cache, GenerationConfig, PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList

from kvlab.core.cache import CompressedCache
from kvlab.core.cache.chunked_prefill import chunk_sizes
from kvlab.core.errors import UserError
from kvlab.engine.forward import end_ids
from kvlab.evaluate.generate import Stops, generate_together
from kvlab.evaluate.results.outcome import Loaded, Memory, Outcome, Stopwatch, read_memory
from kvlab.lmeval.likelihood import Tokens
from kvlab.models.placement import input_device

# Settings of `generation_kwargs` that are passed to transformers' `generate`.
SUPPORTED = ("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "num_beams")
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")


@dataclass(frozen=True)
class GenerationRequest:
    """A context to continue; `options` are sorted pairs, `index` is the request's position in lm-eval's list."""

    context: Tokens
    until: tuple[str, ...]
    max_new_tokens: int
    options: tuple[tuple[str, Any], ...]
    index: int

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the context."""
        return len(self.context)

    @property
    def batch_key(self) -> tuple[object, ...]:
        """Requests with equal keys can run in one batch."""
        return len(self.context), self.until, self.max_new_tokens, self.options

    @property
    def is_sampled(self) -> bool:
        """Whether tokens are sampled."""
        return bool(dict(self.options).get("do_sample"))

    @property
    def is_greedy(self) -> bool:
        """Whether each token is the likeliest one: without sampling, beams and penalties."""
        options = dict(self.options)
        penalty, beams = options.get("repetition_penalty"), options.get("num_beams")
        return not self.is_sampled and penalty in (None, 1) and beams in (None, 1)

    @property
    def stops(self) -> Stops:
        """Texts that end the answer; empty ones would end every answer."""
        return Stops(tuple(filter(None, self.until)), strips=False)


def generate_options(settings: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """lm-eval's settings, without lengths and stop strings, as options of `generate`.

    Raises UserError for a setting that would be ignored.
    """
    unknown = sorted(set(settings) - set(SUPPORTED))
    if unknown:
        raise UserError(f"The task sets {', '.join(unknown)} for generation, which kvlab does not support: remove it.")
    ignored = () if settings.get("do_sample") else SAMPLING
    return tuple(sorted((name, value) for name, value in settings.items() if name not in ignored))


class StopAtAny(StoppingCriteria):
    """Ends a row once its answer contains one of the texts anywhere, as in lm-eval."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_tokens: int, stops: Stops) -> None:
        self.tokenizer, self.prompt_tokens, self.stops = tokenizer, prompt_tokens, stops

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        answers = self.tokenizer.batch_decode(input_ids[:, self.prompt_tokens :], skip_special_tokens=True)
        ended = [self.stops.are_in(answer) for answer in answers]
        return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)


def generate_texts(
    loaded: Loaded, requests: Sequence[GenerationRequest], cache: Cache, in_sight: int, prefill_chunk: int | None = None
) -> list[Outcome]:
    """Generate for requests with equal batch keys; the first `in_sight` context tokens are prefilled and compressed."""
    first, stops = requests[0], requests[0].stops
    written = generate_ids(
        loaded,
        [request.context for request in requests],
        cache,
        in_sight,
        first.max_new_tokens,
        [StopAtAny(loaded.tokenizer, len(first.context), stops)] if stops.texts else [],
        prefill_chunk,
        **dict(first.options),
    )
    texts = loaded.tokenizer.batch_decode(written.ids, skip_special_tokens=True)
    pairs = zip(texts, written.memory, strict=True)
    return [Outcome(stops.cut(text), own, written.seconds, written.prompt_seconds) for text, own in pairs]


def generate_greedily(
    loaded: Loaded,
    requests: Sequence[GenerationRequest],
    caches: Sequence[CompressedCache],
    in_sight: int,
    prefill_chunk: int | None = None,
) -> list[list[Outcome] | Exception]:
    """As `generate_texts` for greedy requests, in passes that the caches share; or the error that ended a cache."""
    first, contexts = requests[0], [list(request.context) for request in requests]
    return generate_together(loaded, contexts, caches, in_sight, first.max_new_tokens, first.stops, prefill_chunk)


@dataclass(frozen=True)
class Generated:
    """Generated token ids (B, n); memory of each prompt, and seconds per prompt."""

    ids: torch.Tensor
    memory: list[Memory]
    seconds: float
    prompt_seconds: float


def generate_ids(
    loaded: Loaded,
    prompts: Sequence[Sequence[int]],
    cache: Cache,
    in_sight: int,
    max_new_tokens: int,
    stopping: Sequence[StoppingCriteria],
    prefill_chunk: int | None = None,
    **options: Any,
) -> Generated:
    """Token ids that continue prompts of one length; `options` such as `do_sample` go to transformers' `generate`.

    The first `in_sight` tokens are prefilled and compressed, at once or in chunks; the rest follows as a second turn.
    """
    device = input_device(loaded.model)
    whole = torch.tensor(list(prompts), device=device)
    watch = Stopwatch(device)
    ends = _pass_ends(cache, in_sight, prefill_chunk)
    with watch.running(), watch.until(loaded.model, len(ends)) as took, torch.inference_mode():
        begun = 0
        for end in ends:
            if end < whole.shape[1]:  # `generate` runs the last pass itself, for the first token of the answer
                _prefill(loaded, whole[:, :end], begun, cache)
                begun = end
        if begun:  # `generate` gives each beam a row of its own, but not in a cache that has been filled
            cache.batch_repeat_interleave(options.get("num_beams") or 1)
        ids = _continue(loaded, whole, cache, max_new_tokens, stopping, options)
    count = len(prompts)
    return Generated(ids, read_memory(cache, count), watch.seconds / count, sum(took) / count)


def _prefill(loaded: Loaded, seen: torch.Tensor, begun: int, cache: Cache) -> None:
    mask = torch.ones_like(seen)
    loaded.model(seen[:, begun:], attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1)


def _continue(
    loaded: Loaded,
    whole: torch.Tensor,
    cache: Cache,
    max_new_tokens: int,
    stopping: Sequence[StoppingCriteria],
    options: Mapping[str, Any],
) -> torch.Tensor:
    tokenizer = loaded.tokenizer
    pad = padding_id(loaded.model, tokenizer)
    ends = sorted(end_ids(loaded)) or None
    generate: Any = loaded.model.generate  # transformers annotates it as a tensor
    with _empty_generation_config(loaded):
        ids = generate(
            whole,
            attention_mask=torch.ones_like(whole),
            past_key_values=cache,
            max_new_tokens=max_new_tokens,
            stopping_criteria=StoppingCriteriaList(stopping),
            pad_token_id=pad,
            eos_token_id=ends,
            **{"do_sample": False, **options},
        )
    return ids[:, whole.shape[1] :]


@contextmanager
def _empty_generation_config(loaded: Loaded) -> Iterator[None]:
    """Ignore the checkpoint's penalties, suppressed tokens and so on, as a comparison does.

    `generate` takes missing arguments from the model's generation_config, so it is replaced by an empty one.
    """
    model: Any = loaded.model
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


def padding_id(model: Any, tokenizer: Any) -> int | None:
    """A token to pad finished rows with: the tokenizer's own if the model can read it."""
    rows = int(model.get_input_embeddings().weight.shape[0])
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((index for index in known if index is not None and index < rows), None)


def _pass_ends(cache: Cache, tokens: int, prefill_chunk: int | None) -> list[int]:
    """End position of each pass over a first prompt of `tokens`, which is announced to the cache.

    Raises UserError for a method whose result chunks would change.
    """
    if isinstance(cache, CompressedCache):
        return list(accumulate(cache.expect(tokens, prefill_chunk)))
    return list(accumulate(chunk_sizes(tokens, prefill_chunk or tokens)))
