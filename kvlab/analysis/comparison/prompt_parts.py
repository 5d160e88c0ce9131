"""The parts of a prompt as its text shows them: system prompt, rules, turns, shots, paragraphs, and the question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from kvlab.requests.conversation import turns_of_text

MOST_BLOCKS = 12  # spans of running text
MOST_SHOTS = 16
QUESTION = "question"
SYSTEM = "system prompt"
_ASKS = re.compile(r"^[ \t]*(?:question|query|request|task|q)[ \t]*\d*:", re.IGNORECASE | re.MULTILINE)
_MARK = re.compile(r"\s*([A-Za-z]+)[ \t]*\d*:")
_BULLET = re.compile(r"[ \t]*(?:[-*•]|\d+[.)])[ \t]+\S")
_BREAKS = {  # where a unit of text begins
    "paragraph": re.compile(r"\n[ \t]*\n\s*(?=\S)"),
    "line": re.compile(r"\n\s*(?=\S)"),
    "sentence": re.compile(r"(?<=[.!?])\s+(?=\S)"),
}


class Part(NamedTuple):
    """A labelled piece of a text, from character `start` to `stop`; pieces of one label belong together."""

    label: str
    start: int
    stop: int


def parts_of_prompt(prompt: str, chat: dict[str, Any] | None = None) -> list[Part]:
    """The parts of a recorded prompt, in order and without gaps between neighbours of a turn.

    `chat` is that of the run's record. Of a conversation these are its turns, the last of which is the question; of any
    other prompt rules at its beginning, shots or blocks of text, and the question: the text from the last line that
    begins with a word such as "Question:", else after the last blank line.
    """
    turns = turns_of_text(prompt)
    named = bool(turns) and turns[0][0] != "" and prompt.rstrip().endswith("Assistant:")
    if not (named or (chat or {}).get("turns")):
        return _body(prompt, 0, len(prompt), asks=chat is not None)
    parts = [part for role, *span in turns if role == "system" for part in parts_of_system(prompt, *span)]
    said = [turn for turn in turns if turn[0] != "system"]
    if len(said) < 2:
        return parts + [part for _, start, stop in said for part in _body(prompt, start, stop, asks=True)]
    parts += [Part(f"turn {number} ({role})", *span) for number, (role, *span) in enumerate(said[:-1], 1)]
    return [*parts, Part(QUESTION, *said[-1][1:])]


def parts_of_system(text: str, start: int, stop: int) -> list[Part]:
    """The rules of a system prompt: its lines with a bullet or number, and `SYSTEM` for the rest.

    Without such lines its lines, or the sentences of its only line, if they are few.
    """
    lines = _pieces(text, start, stop, "line")
    bullets = [bool(_BULLET.match(text[begin:end])) for begin, end in lines]
    if 0 < sum(bullets) <= MOST_BLOCKS:
        number = 0
        parts = []
        for (begin, end), is_rule in zip(lines, bullets, strict=True):
            number += is_rule
            parts.append(Part(f"rule {number}" if is_rule else SYSTEM, begin, end))
        return parts
    units = lines if len(lines) > 1 else _pieces(text, start, stop, "sentence")
    if not 1 < len(units) <= MOST_BLOCKS:
        return [Part(SYSTEM, start, stop)]
    return [Part(f"{SYSTEM}, part {number}", *unit) for number, unit in enumerate(units, 1)]


def _body(text: str, start: int, stop: int, *, asks: bool) -> list[Part]:
    """The parts of a prompt that is one turn; `asks`: it is a user's, whose end is a request even without a mark."""
    cut = _question_start(text, start, stop)
    last = text[cut:stop]
    is_question = asks or cut == start or "?" in last or _ASKS.match(last) is not None
    end = Part(QUESTION if is_question else "end of the prompt", cut, stop)
    rules = _leading_rules(text, start, cut)
    after = rules[-1].stop if rules else start
    shots = _shots(text, after, cut, last)
    return [*rules, *_blocks(text, after, shots[0].start if shots else cut), *shots, end]


def _question_start(text: str, start: int, stop: int) -> int:
    asks = [match.start() for match in _ASKS.finditer(text, start, stop)]
    if asks and asks[-1] > start:
        return asks[-1]
    stop = start + len(text[start:stop].rstrip())
    for unit in _BREAKS:
        if len(pieces := _pieces(text, start, stop, unit)) > 1:
            return pieces[-1][0]
    return start


def _leading_rules(text: str, start: int, stop: int) -> list[Part]:
    """Two to `MOST_BLOCKS` bulleted lines at the beginning, after at most one line that ends with a colon."""
    lines = _pieces(text, start, stop, "line")
    parts = []
    if lines and text[slice(*lines[0])].rstrip().endswith(":"):
        parts = [Part("heading of the rules", *lines.pop(0))]
    rules = 0
    for begin, end in lines:
        if not _BULLET.match(text[begin:end]):
            break
        rules += 1
        parts.append(Part(f"rule {rules}", begin, end))
    return parts if 2 <= rules <= MOST_BLOCKS else []


def _shots(text: str, start: int, stop: int, question: str) -> list[Part]:
    """Blocks before the question that begin with its mark, such as `Q:`; none if it has no mark, or too many do."""
    mark = _MARK.match(question)
    if mark is None:
        return []
    same = re.compile(rf"^[ \t]*{mark[1]}[ \t]*\d*:", re.MULTILINE)
    begins = [match.start() for match in same.finditer(text, start, stop)]
    if len(begins) > MOST_SHOTS:
        return []
    return [Part(f"shot {number}", *span) for number, span in enumerate(pairwise([*begins, stop]), 1)]


def _blocks(text: str, start: int, stop: int) -> list[Part]:
    """The paragraphs, else lines, else sentences; more than `MOST_BLOCKS` are joined to blocks of about one length."""
    if not text[start:stop].strip():
        return []
    found = {unit: _pieces(text, start, stop, unit) for unit in _BREAKS}
    unit = next((unit for unit, pieces in found.items() if len(pieces) > 1), "")
    pieces = found.get(unit, [(start, stop)])
    if len(pieces) == 1:
        return [Part("text", start, stop)]
    if len(pieces) <= MOST_BLOCKS:
        return [Part(f"{unit} {number}", *piece) for number, piece in enumerate(pieces, 1)]
    block_of = [int(MOST_BLOCKS * ((begin + end) / 2 - start) / (stop - start)) for begin, end in pieces]
    first = [piece[0] for piece, before, here in zip(pieces, [-1, *block_of], block_of, strict=False) if here > before]
    return [Part(f"text {number}", *span) for number, span in enumerate(pairwise([*first, stop]), 1)]


def _pieces(text: str, start: int, stop: int, unit: str) -> list[tuple[int, int]]:
    """(start, stop) of each unit, the white space after it included."""
    begins: Sequence[int] = [match.end() for match in _BREAKS[unit].finditer(text, start, stop)]
    return list(pairwise([start, *(begin for begin in begins if start < begin < stop), stop]))
