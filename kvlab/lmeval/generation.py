"""Text generation under a compressed cache with lm-eval's stop strings and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Cache, GenerationConfig, PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList

from kvlab.cache import CompressedCache
from kvlab.cache.fan_out.fan_out_layer import Branch
from kvlab.common.errors import UserError
from kvlab.common.token_ids import padding_id
from kvlab.engine.forward import end_ids
from kvlab.evaluate.passes import pass_ends
from kvlab.evaluate.results.outcome import Loaded, Memory, Stopwatch, read_memory
from kvlab.evaluate.shared_prompt import SharedPrompt, failures_in_branches
from kvlab.lmeval.likelihood import Tokens
from kvlab.lmeval.shared_passes import in_groups, results
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
    def stops(self) -> list[str]:
        """Texts that end the answer; empty ones would end every answer."""
        return [stop for stop in self.until if stop]


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

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_tokens: int, texts: Sequence[str]) -> None:
        self.tokenizer, self.prompt_tokens, self.texts = tokenizer, prompt_tokens, texts

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        answers = self.tokenizer.batch_decode(input_ids[:, self.prompt_tokens :], skip_special_tokens=True)
        ended = [any(text in answer for text in self.texts) for answer in answers]
        return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)


def generate_texts(
    loaded: Loaded,
    requests: Sequence[GenerationRequest],
    cache: Cache,
    in_sight: int,
    prefill_chunk: int | None = None,
) -> list[Written]:
    """Generate for requests with equal batch keys; the first `in_sight` context tokens are prefilled and compressed."""
    first = requests[0]
    stops = first.stops
    written = generate_ids(
        loaded,
        [request.context for request in requests],
        cache,
        in_sight,
        first.max_new_tokens,
        [StopAtAny(loaded.tokenizer, len(first.context), stops)] if stops else [],
        prefill_chunk,
        **dict(first.options),
    )
    texts = loaded.tokenizer.batch_decode(written.ids, skip_special_tokens=True)
    return [Written(_cut(text, stops), written.memory, written.seconds, written.prompt_seconds) for text in texts]


def _cut(text: str, stops: Sequence[str]) -> str:
    for stop in stops:
        text = text.split(stop)[0]
    return text


@dataclass(frozen=True)
class Written:
    """A generated text; memory and seconds are per prompt."""

    text: str
    memory: Memory
    seconds: float
    prompt_seconds: float


def generate_greedily(
    loaded: Loaded,
    requests: Sequence[GenerationRequest],
    caches: Sequence[CompressedCache],
    in_sight: int,
    prefill_chunk: int | None = None,
) -> list[list[Written] | Exception]:
    """For each cache the texts of greedy requests with equal batch keys, or the error that ended it.

    Caches that can share passes read the contexts once; a row leaves the batch when its text ends. The first `in_sight`
    context tokens are prefilled and compressed. Raises UserError if `prefill_chunk` would change a method's result.
    """
    return in_groups(caches, lambda group: _generate_together(loaded, requests, group, in_sight, prefill_chunk))


def _generate_together(
    loaded: Loaded,
    requests: Sequence[GenerationRequest],
    caches: Sequence[CompressedCache],
    in_sight: int,
    prefill_chunk: int | None,
) -> list[list[Written] | Exception]:
    first, count = requests[0], len(requests)
    shared = SharedPrompt(loaded, caches, [list(one.context) for one in requests], in_sight, prefill_chunk)
    texts = {branch: _Texts(list(range(count)), [[] for _ in requests]) for branch in shared.branches}
    found: dict[Branch, list[Written]] = {}
    with failures_in_branches(shared.fan_out):
        logits = shared.read()
        for place in range(first.max_new_tokens):
            last = place == first.max_new_tokens - 1
            tokens = _choose(loaded, shared, logits, texts, first.stops, last)
            if not tokens:
                break
            logits = shared.step(tokens)
    for branch in shared.branches:
        if branch.error is None:
            prompt_seconds = shared.prompt_seconds(branch) / count
            seconds = prompt_seconds + shared.decode_seconds(branch) / count
            own = texts[branch]
            decoded = loaded.tokenizer.batch_decode(own.ids, skip_special_tokens=True)
            found[branch] = [
                Written(_cut(text, first.stops), own.memory[row], seconds, prompt_seconds)
                for row, text in enumerate(decoded)
            ]
    return results(shared, found)


@dataclass
class _Texts:
    """The texts that one cache's rows write. `running`: the request of each row of its branch."""

    running: list[int]
    ids: list[list[int]]
    memory: dict[int, Memory] = field(default_factory=dict)


def _choose(
    loaded: Loaded,
    shared: SharedPrompt,
    logits: torch.Tensor,
    texts: Mapping[Branch, _Texts],
    stops: Sequence[str],
    last: bool,
) -> list[int]:
    """Add the likeliest token to every text that runs; returns those of the rows that stay, in the order of the batch.

    `logits` are (R, V).
    """
    ends, kept = end_ids(loaded), []
    likeliest = logits.argmax(-1).tolist()  # read from the device once for all rows
    chosen = [(branch, likeliest[branch.rows]) for branch in shared.fan_out.branches]
    for branch, tokens in chosen:
        own = texts[branch]
        for request, token in zip(own.running, tokens, strict=True):
            own.ids[request].append(token)
        written = loaded.tokenizer.batch_decode([own.ids[one] for one in own.running], skip_special_tokens=True)
        stay = [
            row
            for row, (token, text) in enumerate(zip(tokens, written, strict=True))
            if not (last or token in ends or any(stop in text for stop in stops))
        ]
        kept += [tokens[row] for row in stay]
        if len(stay) < len(tokens):
            memory = read_memory(branch.cache, len(tokens))
            own.memory |= {request: memory for row, request in enumerate(own.running) if row not in stay}
            own.running = [own.running[row] for row in stay]
            if stay:
                shared.fan_out.keep_rows(branch, stay)
            else:
                shared.fan_out.drop([branch])
    return kept


@dataclass(frozen=True)
class Generated:
    """Generated token ids (B, n); memory and seconds are per prompt."""

    ids: torch.Tensor
    memory: Memory
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
    ends = pass_ends(cache, in_sight, prefill_chunk)
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
