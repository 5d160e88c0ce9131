"""Cutting a prompt that is longer than its model reads: which part goes is the reader's choice, and is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvlab.model_info.chat_template import Manner, Spoken
from kvlab.model_info.names import context_length
from kvlab.model_info.token_count import count_tokens, encoded, tokenizer_of
from kvlab.requests.compare import OnePrompt
from kvlab.requests.facts import find_facts

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
    """(start, stop) in the text of every token in it; None where the tokenizer is not here."""
    tokenizer = tokenizer_of(model)
    if tokenizer is None:
        return None
    return [span for span in encoded(tokenizer, text, False).offsets if span[1] > span[0]]


def shortened(read: Spoken, most: int) -> Spoken:
    """The same with at most so many characters of the prompt, its beginning; of a template around it all is left."""
    start, stop = read.own
    kept = min(stop, start + most)
    return replace(read, text=read.text[:kept] + read.text[stop:], own=(start, kept))


def tokens_over(prompt: str, how: Manner, new_tokens: int) -> int:
    """How many tokens the prompt and the new ones are more than the model reads; 0 where they fit or nobody knows."""
    room = context_length(how.model)
    if room is None:
        return 0
    count, exact = count_tokens(prompt, how)
    return max(0, count + new_tokens - room) if exact else 0


def cut_to_fit(text: str, how: Manner, new_tokens: int, keep: Keep) -> Cut:
    """The prompt without as many tokens as are too many, taken from its beginning, end or middle.

    Of a chat template around it nothing is cut.
    """
    over, spans = tokens_over(text, how, new_tokens), token_spans(text, how.model)
    if not over or not spans:
        return Cut(text)
    left = max(1, len(spans) - over - MARGIN)
    head = {"end": 0, "beginning": left, "both ends": left // 2}[keep]
    tail = left - head
    start = spans[head - 1][1] if head else 0
    stop = spans[len(spans) - tail][0] if tail else len(text)
    return Cut(text[:start], text[start:stop], text[stop:])


def cut_prompts(
    several: Sequence[OnePrompt], how: Manner, new_tokens: int, keep: Keep
) -> tuple[tuple[OnePrompt, ...], dict[int, int]]:
    """Several prompts, each cut where it is too long; and of each that was cut, by its place, how many characters.

    Facts are found again in what is left; those that were cut away are facts no more. Conversations stay whole.
    """
    found, lost = [], {}
    for place, one in enumerate(several):
        cut = Cut(one.prompt) if one.turns else cut_to_fit(one.prompt, how, new_tokens, keep)
        if cut.removed:
            lost[place] = len(cut.removed)
            words = [one.prompt[start:stop] for start, stop in one.facts]
            facts = find_facts(cut.text, [fact for fact in words if fact in cut.text])
            one = one.model_copy(update={"prompt": cut.text, "facts": facts})
        found.append(one)
    return tuple(found), lost
