"""Truncate a prompt that is longer than the model's context window; the user chooses which part is removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvlab.models.info.chat_template import ChatFormat, RenderedPrompt
from kvlab.models.info.names import context_length
from kvlab.models.info.token_count import count_tokens, encode_text, tokenizer_of
from kvlab.requests.compare import OnePrompt
from kvlab.requests.facts import find_facts

Keep = Literal["end", "beginning", "both ends"]
KEEPS: tuple[Keep, ...] = ("both ends", "end", "beginning")
MARGIN = 8  # tokens: text on both sides of a cut may be tokenized differently once joined


@dataclass(frozen=True)
class TruncatedPrompt:
    """A prompt in three parts; `removed` is not read. Without truncation all is in `before`."""

    before: str
    removed: str = ""
    after: str = ""

    @property
    def text(self) -> str:
        """The text that is read."""
        return self.before + self.after


def token_spans(text: str, model: str) -> list[tuple[int, int]] | None:
    """(start, stop) in the text of every token; None if the tokenizer is not on this machine."""
    tokenizer = tokenizer_of(model)
    if tokenizer is None:
        return None
    return [span for span in encode_text(tokenizer, text, False).offsets if span[1] > span[0]]


def shorten_prompt(read: RenderedPrompt, most: int) -> RenderedPrompt:
    """The same with at most `most` characters of the prompt; a chat template around it is kept."""
    start, stop = read.own
    end = min(stop, start + most)
    return replace(read, text=read.text[:end] + read.text[stop:], own=(start, end))


def excess_tokens(prompt: str, how: ChatFormat, new_tokens: int) -> int:
    """How many tokens prompt and new tokens exceed the context window by; 0 if they fit or that is unknown."""
    window = context_length(how.model)
    if window is None:
        return 0
    count, exact = count_tokens(prompt, how)
    return max(0, count + new_tokens - window) if exact else 0


def truncate_prompt(text: str, how: ChatFormat, new_tokens: int, keep: Keep) -> TruncatedPrompt:
    """The prompt without the excess tokens, removed from its beginning, end or middle.

    A chat template around it is not cut.
    """
    over = excess_tokens(text, how, new_tokens)
    spans = token_spans(text, how.model)
    if not over or not spans:
        return TruncatedPrompt(text)
    left = max(1, len(spans) - over - MARGIN)
    head = {"end": 0, "beginning": left, "both ends": left // 2}[keep]
    tail = left - head
    start = spans[head - 1][1] if head else 0
    stop = spans[len(spans) - tail][0] if tail else len(text)
    return TruncatedPrompt(text[:start], text[start:stop], text[stop:])


def truncate_prompts(
    prompts: Sequence[OnePrompt], how: ChatFormat, new_tokens: int, keep: Keep
) -> tuple[tuple[OnePrompt, ...], dict[int, int]]:
    """Several prompts, each truncated if too long, and the characters removed by prompt index.

    Facts are located again in the remaining text; removed facts are dropped. Conversations stay whole.
    """
    truncated = []
    lost = {}
    for place, one in enumerate(prompts):
        cut = TruncatedPrompt(one.prompt) if one.turns else truncate_prompt(one.prompt, how, new_tokens, keep)
        if cut.removed:
            lost[place] = len(cut.removed)
            texts = [one.prompt[start:stop] for start, stop in one.facts]
            facts = find_facts(cut.text, [fact for fact in texts if fact in cut.text])
            one = one.model_copy(update={"prompt": cut.text, "facts": facts})
        truncated.append(one)
    return tuple(truncated), lost
