"""The passes over a prefix's cache: reading more tokens, and writing an answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.cache import CompressedCache
from kvlab.core.errors import UserError
from kvlab.engine.forward import end_ids
from kvlab.models.answer_text import decode_answer
from kvlab.models.load import LoadedModel
from kvlab.models.tokenizer import window_of


@dataclass(frozen=True)
class Answer:
    """An answer: its text, its token ids with the end token if the model wrote one, and why it ended."""

    text: str
    token_ids: tuple[int, ...]
    ended: Literal["end", "length"]

    def __str__(self) -> str:
        return self.text


def read_context(loaded: LoadedModel, cache: CompressedCache, ids: list[int], prefill_chunk: int | None) -> None:
    """Read a text into an empty cache, in chunks of `prefill_chunk` tokens if given, which then compresses it."""
    for piece in _pieces(ids, cache.expect(len(ids), prefill_chunk)):
        next_logits(loaded, cache, piece)


@torch.inference_mode()
def next_logits(loaded: LoadedModel, cache: CompressedCache, ids: list[int]) -> Tensor:
    """Logits (V,) after more tokens."""
    given = torch.tensor([ids], device=loaded.device)
    return loaded.model(given, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1].float()


def write_answer(loaded: LoadedModel, cache: CompressedCache, ids: list[int], most: int) -> Answer:
    """Read a question and write an answer; the model's own end token is part of the text before a next question."""
    ends = end_ids(loaded)
    written = list[int]()
    logits = next_logits(loaded, cache, ids)
    while True:
        token = int(logits.argmax())
        written.append(token)
        if token in ends:
            break
        logits = next_logits(loaded, cache, [token])
        if len(written) == most:
            break
    text = decode_answer(loaded.tokenizer, written)
    return Answer(text.strip(), tuple(written), "end" if token in ends else "length")


def check_window(loaded: LoadedModel, tokens: int, what: str) -> None:
    """Raise UserError if this many tokens exceed the model's context window."""
    window = window_of(loaded.model.config)
    if tokens > window:
        raise UserError(
            f"{what} needs {tokens:,} tokens with all that was read before, but the context window of {loaded.name} is "
            f"{window:,}: shorten it."
        )


def _pieces(ids: list[int], sizes: list[int]) -> Iterator[list[int]]:
    ends = list(accumulate(sizes))
    return (ids[end - size : end] for size, end in zip(sizes, ends, strict=True))
