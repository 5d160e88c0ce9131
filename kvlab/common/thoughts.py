"""Thinking in a model's text: where it begins and ends, and the answer outside of it.

Known are tags named after thinking, thoughts or reasoning (`<think>`, `[THINK]`, `<seed:think>`, `◁think▷`,
`<|START_THINKING|>`), Apertus' inner prefix and suffix, Gemma 4's thought channel and the channels of gpt-oss, of which
only `final` is the answer. A chat template may write the opening tag itself, at the end of the prompt. `tags` of other
names are those that a chat template declares (`kvlab.models.chat`).
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

Span = tuple[int, int]
Tags = tuple[str, str]  # literal text that opens thinking, and that closes it

SETTING = "think_tags"  # in the settings of a chat template, as runs and rows keep them

MORE_TOKENS = "allow more new tokens"

_NAME = r"(?!no_?think)[\w:.-]*(?:think|thought|reasoning)[\w:.-]*"
_KNOWN = rf"""
    (?i:<\|?|◁)(?P<slash>/?)(?P<name>(?i:{_NAME}))(?:\|?>|▷)
  | \[(?P<end>/?)(?:THINK(?:ING)?|REASONING)\]
  | <\|inner_(?P<inner>prefix|suffix)\|>
  | (?:<\|end\|>)?(?:<\|start\|>\s*assistant)?\s*
    <\|channel\|>\s*(?P<channel>\w+)[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>
  | <\|channel>\s*(?P<thought>thought) | (?P<spoken><channel\|>)
"""
_ENDS = re.compile(r"^(?:end|stop|close)|(?:end|stop|close|off)$", re.IGNORECASE)
_MARKS = frozenset(("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>", "<|channel>", "<channel|>"))
_TAIL = 200  # characters of a prompt in which its last tag is sought


def answer_spans(text: str, opened: bool = False, tags: Tags | None = None) -> list[Span]:
    """(start, stop) of every piece of the answer: what follows the end of thinking, without later thinking.

    `opened`: the prompt ends within thinking. All of a text without thinking is answer; none if thinking never ends.
    """
    return _read(text, opened, tags)[0]


def is_unfinished(text: str, opened: bool = False, tags: Tags | None = None) -> bool:
    """Whether the text ends within thinking."""
    return _read(text, opened, tags)[1]


def answer_of(text: str, opened: bool = False, tags: Tags | None = None) -> str:
    """The answer alone; a text without thinking as it is."""
    spans = answer_spans(text, opened, tags)
    whole = spans == [(0, len(text))]
    return text if whole else "".join(text[start:stop] for start, stop in spans).strip()


def hide_thinking(text: str, opened: bool = False, tags: Tags | None = None) -> str:
    """The text with a line break in place of every character that is not of the answer, so that places stay."""
    hidden = ""
    end = 0
    for start, stop in answer_spans(text, opened, tags):
        hidden += "\n" * (start - end) + text[start:stop]
        end = stop
    return hidden + "\n" * (len(text) - end)


def hide_in(texts: Sequence[str], opened: bool = False, tags: Tags | None = None) -> list[str]:
    """`hide_thinking` in a text given in pieces, as pieces of the same lengths."""
    hidden = hide_thinking("".join(texts), opened, tags)
    return [hidden[start:stop] for start, stop in pairwise([0, *accumulate(map(len, texts))])]


def open_tag(prompt: str, tags: Tags | None = None) -> str:
    """The tag, at a prompt's end, that opens thinking; empty if there is none."""
    tail = prompt[-_TAIL:]
    last = next(iter([*_pattern(tags).finditer(tail)][::-1]), None)
    return tail[last.start() :] if last is not None and not _closes(last) and not tail[last.end() :].strip() else ""


def is_mark(token: str, tags: Tags | None = None) -> bool:
    """Whether a special token belongs to a tag, so that a text without it could not be read."""
    if tags is not None and any(token in tag for tag in tags):
        return True
    return token in _MARKS or _pattern(None).fullmatch(token) is not None


def declared_tags(chat: Mapping[str, Any] | None) -> Tags | None:
    """The tags in the settings of a chat template; None if it declares none of its own, or for older settings."""
    tags = None if chat is None else chat.get(SETTING)
    return None if tags is None else (str(tags[0]), str(tags[1]))


@lru_cache(maxsize=32)
def _pattern(tags: Tags | None) -> re.Pattern[str]:
    """A pattern that matches the known tags and `tags`."""
    never = "(?!)"
    opening, closing = (never, never) if tags is None else map(re.escape, tags)
    return re.compile(rf"(?P<opening>{opening}) | (?P<closing>{closing}) | {_KNOWN}", re.VERBOSE)


def _closes(tag: re.Match[str]) -> bool:
    """Whether a tag ends thinking."""
    if tag["opening"] or tag["closing"]:
        return bool(tag["closing"])
    if tag["channel"] is not None:
        return tag["channel"] == "final"
    if tag["inner"] is not None:
        return tag["inner"] == "suffix"
    return bool(tag["slash"] or tag["end"] or tag["spoken"] or _ENDS.search((tag["name"] or "").strip("_")))


def _read(text: str, opened: bool, tags: Tags | None) -> tuple[list[Span], bool]:
    """(pieces of the answer, whether the text ends within thinking)."""
    spans = list[Span]()
    thinks = opened
    has_ended = False
    start = 0
    for tag in _pattern(tags).finditer(text):
        stop, following = tag.span()
        if _closes(tag):
            if not (thinks and has_ended):  # what comes before the first end, or before one without a beginning
                spans = []
            thinks = False
            has_ended = True
            start = following
        elif not thinks:
            spans.append((start, stop))
            thinks = True
    if not thinks:
        spans.append((start, len(text)))
    return spans if has_ended or not thinks else [], thinks
