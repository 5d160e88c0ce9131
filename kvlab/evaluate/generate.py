"""Answers to prompts of equal length under one compressed cache: greedy, or drawn at a temperature."""

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
    """Ends a row once its answer, white space at its start aside, holds the text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_tokens: int, text: str) -> None:
        self.tokenizer = tokenizer
        self.prompt_tokens = prompt_tokens
        self.text = text

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        answers = self.tokenizer.batch_decode(input_ids[:, self.prompt_tokens :], skip_special_tokens=True)
        ended = [self.text in answer.lstrip() for answer in answers]
        return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)


@dataclass(frozen=True)
class Drawing:
    """An answer that is drawn from all tokens at a temperature, with a seed of its own."""

    temperature: float
    seed: int


def cut_answer(text: str, stop: str | None) -> str:
    """Return the answer up to the stop text, without white space at its ends."""
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
    drawing: Drawing | None = None,
) -> list[Outcome]:
    """Return one outcome a prompt; all prompts must be of one length.

    The first `in_sight` tokens are prefilled and compressed, at once or in chunks; the rest follows as a second turn on
    the same cache. Raises UserError for a method that chunks would change.
    """
    stopping = [StopAtText(loaded.tokenizer, len(prompts[0]), stop)] if stop else []
    written = write(loaded, prompts, cache, in_sight, max_new_tokens, stopping, prefill_chunk, drawing)
    texts = loaded.tokenizer.batch_decode(written.ids, skip_special_tokens=True)
    seconds = written.seconds, written.prompt_seconds
    return [Outcome(cut_answer(text, stop), written.memory, *seconds) for text in texts]


@dataclass(frozen=True)
class Written:
    """Token ids (B, n) after the prompts; memory and seconds are one prompt's share."""

    ids: torch.Tensor
    memory: Memory
    seconds: float
    prompt_seconds: float


def write(
    loaded: Loaded,
    prompts: Sequence[Sequence[int]],
    cache: Cache,
    in_sight: int,
    max_new_tokens: int,
    stopping: Sequence[StoppingCriteria],
    prefill_chunk: int | None = None,
    drawing: Drawing | None = None,
    **options: Any,
) -> Written:
    """As `generate_answers`, with the ids themselves; `options` such as `do_sample` go to transformers' `generate`."""
    device = input_device(loaded.model)
    whole = torch.tensor(list(prompts), device=device)
    watch = Stopwatch(device)
    ends = pass_ends(cache, in_sight, prefill_chunk)
    with watch.running(), watch.until(loaded.model, len(ends)) as took, torch.inference_mode():
        begun = 0
        for end in ends:
            if end < whole.shape[1]:  # `generate` makes the last pass itself, for the first token of the answer
                _prefill(loaded, whole[:, :end], begun, cache)
                begun = end
        ids = _continue(loaded, whole, cache, max_new_tokens, stopping, drawing, options)
    count = len(prompts)
    return Written(ids, read_memory(cache, count), watch.seconds / count, sum(took) / count)


def _prefill(loaded: Loaded, seen: torch.Tensor, begun: int, cache: Cache) -> None:
    """Run the tokens of `seen` from `begun` on."""
    mask = torch.ones_like(seen)
    loaded.model(seen[:, begun:], attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1)


def _continue(
    loaded: Loaded,
    whole: torch.Tensor,
    cache: Cache,
    max_new_tokens: int,
    stopping: Sequence[StoppingCriteria],
    drawing: Drawing | None,
    options: Mapping[str, Any],
) -> torch.Tensor:
    tokenizer = loaded.tokenizer
    pad = padding_id(loaded.model, tokenizer)
    ends = sorted(end_ids(loaded)) or None
    generate: Any = loaded.model.generate  # transformers annotates it as a tensor
    drawn: dict[str, Any] = {} if drawing is None else {"temperature": drawing.temperature, "top_k": 0, "top_p": 1.0}
    with _no_habits(loaded), _seeded(drawing, whole.device):
        ids = generate(
            whole,
            attention_mask=torch.ones_like(whole),
            past_key_values=cache,
            max_new_tokens=max_new_tokens,
            stopping_criteria=StoppingCriteriaList(stopping),
            pad_token_id=pad,
            eos_token_id=ends,
            **{"do_sample": drawing is not None, **drawn, **options},
        )
    return ids[:, whole.shape[1] :]


@contextmanager
def _seeded(drawing: Drawing | None, device: torch.device) -> Iterator[None]:
    """With the drawing's own random numbers; those of everything else go on afterwards as if nothing had been drawn."""
    if drawing is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(drawing.seed)
        yield


@contextmanager
def _no_habits(loaded: Loaded) -> Iterator[None]:
    """Without the checkpoint's penalties, suppressed tokens and the like, as a comparison decodes.

    `generate` takes from the model's own settings whatever it is not given, so that for a while there are none.
    """
    model: Any = loaded.model
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own
