"""Generate answers to prompts of equal length with one compressed cache: greedy, or sampled at a temperature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache, GenerationConfig, PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList

from kvlab.common.token_ids import padding_id
from kvlab.engine.forward import end_ids
from kvlab.evaluate.passes import pass_ends
from kvlab.evaluate.results.outcome import Loaded, Memory, Outcome, Stopwatch, read_memory
from kvlab.models.placement import input_device


class StopAtText(StoppingCriteria):
    """Stop a row once its answer, after leading white space, contains the text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_tokens: int, text: str) -> None:
        self.tokenizer = tokenizer
        self.prompt_tokens = prompt_tokens
        self.text = text

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        answers = self.tokenizer.batch_decode(input_ids[:, self.prompt_tokens :], skip_special_tokens=True)
        ended = [self.text in answer.lstrip() for answer in answers]
        return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)


@dataclass(frozen=True)
class Sampling:
    """Sample from the full vocabulary at a temperature, with an own seed."""

    temperature: float
    seed: int


def cut_answer(text: str, stop: str | None) -> str:
    """Cut the answer at the stop text and strip white space."""
    text = text.strip() if stop is None else text.lstrip()
    return text.split(stop)[0].rstrip() if stop else text


def generate_answers(
    loaded: Loaded,
    prompts: Sequence[list[int]],
    cache: Cache,
    in_sight: int,
    max_new_tokens: int,
    stop: str | None,
    prefill_chunk: int | None = None,
    sampling: Sampling | None = None,
) -> list[Outcome]:
    """One outcome per prompt; all prompts must have one length.

    The first `in_sight` tokens are prefilled and compressed, at once or in chunks; the rest follows as a second turn.
    Raises UserError for a method whose result chunks would change.
    """
    stopping = [StopAtText(loaded.tokenizer, len(prompts[0]), stop)] if stop else []
    generated = generate_ids(loaded, prompts, cache, in_sight, max_new_tokens, stopping, prefill_chunk, sampling)
    texts = loaded.tokenizer.batch_decode(generated.ids, skip_special_tokens=True)
    seconds = generated.seconds, generated.prompt_seconds
    return [Outcome(cut_answer(text, stop), generated.memory, *seconds) for text in texts]


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
    sampling: Sampling | None = None,
    **options: Any,
) -> Generated:
    """As `generate_answers`, but returns ids; `options` such as `do_sample` go to transformers' `generate`."""
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
        ids = _continue(loaded, whole, cache, max_new_tokens, stopping, sampling, options)
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
    sampling: Sampling | None,
    options: Mapping[str, Any],
) -> torch.Tensor:
    tokenizer = loaded.tokenizer
    pad = padding_id(loaded.model, tokenizer)
    ends = sorted(end_ids(loaded)) or None
    generate: Any = loaded.model.generate  # transformers annotates it as a tensor
    sampled: dict[str, Any] = (
        {} if sampling is None else {"temperature": sampling.temperature, "top_k": 0, "top_p": 1.0}
    )
    with _empty_generation_config(loaded), _seeded(sampling, whole.device):
        ids = generate(
            whole,
            attention_mask=torch.ones_like(whole),
            past_key_values=cache,
            max_new_tokens=max_new_tokens,
            stopping_criteria=StoppingCriteriaList(stopping),
            pad_token_id=pad,
            eos_token_id=ends,
            **{"do_sample": sampling is not None, **sampled, **options},
        )
    return ids[:, whole.shape[1] :]


@contextmanager
def _seeded(sampling: Sampling | None, device: torch.device) -> Iterator[None]:
    """Use the sampling's own seed and restore the global random state afterwards."""
    if sampling is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(sampling.seed)
        yield


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
