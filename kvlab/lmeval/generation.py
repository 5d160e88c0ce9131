"""Text generation under a compressed cache with lm-eval's stop strings and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache, PreTrainedTokenizerBase, StoppingCriteria

from kvlab.common.errors import UserError
from kvlab.evaluate.generate import Generated, generate_ids
from kvlab.evaluate.results.outcome import Loaded
from kvlab.lmeval.likelihood import Tokens

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
) -> tuple[list[str], Generated]:
    """Generate for requests with equal batch keys; the first `in_sight` context tokens are prefilled and compressed."""
    first = requests[0]
    stops = [stop for stop in first.until if stop]
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
    return [_cut(text, stops) for text in texts], written


def _cut(text: str, stops: Sequence[str]) -> str:
    for stop in stops:
        text = text.split(stop)[0]
    return text
