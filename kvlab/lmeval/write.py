"""Texts that the harness lets a model write, under a compressed cache, with its stop strings and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache, PreTrainedTokenizerBase, StoppingCriteria

from kvlab.common.errors import UserError
from kvlab.evaluate.generate import Generated, generate_ids
from kvlab.evaluate.results.outcome import Loaded
from kvlab.lmeval.texts import Tokens

# Of `generation_kwargs`, what transformers' `generate` is given as it is.
TAKEN = ("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "num_beams")


@dataclass(frozen=True)
class Asking:
    """A context to go on from; `options` as pairs in the order of their names. `place` is where the request stood."""

    context: Tokens
    until: tuple[str, ...]
    max_new_tokens: int
    options: tuple[tuple[str, Any], ...]
    place: int

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the context."""
        return len(self.context)

    @property
    def alike(self) -> tuple[object, ...]:
        """What requests that run together have in common."""
        return len(self.context), self.until, self.max_new_tokens, self.options

    @property
    def drawn(self) -> bool:
        """Whether the text is drawn at random."""
        return bool(dict(self.options).get("do_sample"))


def options_of(settings: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The harness's settings, without lengths and stop strings, as `generate` takes them.

    Raises UserError for a setting that would be ignored.
    """
    unknown = sorted(set(settings) - set(TAKEN))
    if unknown:
        raise UserError(f"The task sets {', '.join(unknown)} for its texts, which kvlab does not know: leave it out.")
    greedy = not settings.get("do_sample")
    return tuple(sorted((name, value) for name, value in settings.items() if not (greedy and name in _OF_SAMPLING)))


_OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")


class StopAtAny(StoppingCriteria):
    """Ends a row once its answer holds one of the texts, wherever it begins (the harness's rule)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_tokens: int, texts: Sequence[str]) -> None:
        self.tokenizer, self.prompt_tokens, self.texts = tokenizer, prompt_tokens, texts

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        answers = self.tokenizer.batch_decode(input_ids[:, self.prompt_tokens :], skip_special_tokens=True)
        ended = [any(text in answer for text in self.texts) for answer in answers]
        return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)


def cut_at(text: str, until: Sequence[str]) -> str:
    """The text before the first of the stop strings."""
    for stop in until:
        text = text.split(stop)[0] if stop else text
    return text


def write_texts(
    loaded: Loaded, asked: Sequence[Asking], cache: Cache, hold_back: int, prefill_chunk: int | None = None
) -> tuple[list[str], Generated]:
    """The texts of requests that are alike. The context but its last `hold_back` tokens is prefilled and compressed."""
    first = asked[0]
    stops = [stop for stop in first.until if stop]
    stopping = [StopAtAny(loaded.tokenizer, len(first.context), stops)] if stops else []
    written = generate_ids(
        loaded,
        [one.context for one in asked],
        cache,
        in_sight_of(first.context, hold_back),
        first.max_new_tokens,
        stopping,
        prefill_chunk,
        **dict(first.options),
    )
    texts = loaded.tokenizer.batch_decode(written.ids, skip_special_tokens=True)
    return [cut_at(text, stops) for text in texts], written


def in_sight_of(context: Tokens, hold_back: int) -> int:
    """How many tokens of a context are there when it is compressed: at least one."""
    return max(1, len(context) - hold_back)
