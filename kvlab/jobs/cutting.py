"""Cutting a prompt that is longer than its model reads: which part goes is the reader's choice, and is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvlab.jobs.models import context_length
from kvlab.jobs.prompts import tokenizer_of

Keep = Literal["end", "beginning", "both ends"]
KEEPS: tuple[Keep, ...] = ("both ends", "end", "beginning")
MARGIN = 8  # tokens: the pieces on both sides of a cut may be counted differently once they meet


@dataclass(frozen=True)
class Cut:
    """A prompt in three parts; `removed` is not read. Without a cut all is in `before`."""

    before: str
    removed: str = ""
    after: str = ""

    @property
    def text(self) -> str:
        """What is read."""
        return self.before + self.after


def token_spans(text: str, model: str) -> list[tuple[int, int]] | None:
    """(start, stop) in the text of every token, special ones left out; None where the tokenizer is not here."""
    tokenizer = tokenizer_of(model)
    if tokenizer is None:
        return None
    return [span for span in tokenizer.encode(text).offsets if span[1] > span[0]]


def tokens_over(text: str, model: str, new_tokens: int) -> int:
    """How many tokens the prompt and the new ones are more than the model reads; 0 where they fit or nobody knows."""
    tokenizer, room = tokenizer_of(model), context_length(model)
    if tokenizer is None or room is None:
        return 0
    return max(0, len(tokenizer.encode(text).ids) + new_tokens - room)


def cut_to_fit(text: str, model: str, new_tokens: int, keep: Keep) -> Cut:
    """The prompt without as many tokens as are too many, taken from its beginning, end or middle."""
    over, spans = tokens_over(text, model, new_tokens), token_spans(text, model)
    if not over or not spans:
        return Cut(text)
    left = max(1, len(spans) - over - MARGIN)
    head = {"end": 0, "beginning": left, "both ends": left // 2}[keep]
    tail = left - head
    start = spans[head - 1][1] if head else 0
    stop = spans[len(spans) - tail][0] if tail else len(text)
    return Cut(text[:start], text[start:stop], text[stop:])
