"""Spans of a recorded prompt: rules, turns, shots, paragraphs, question, found in the text or written by a user."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from kvlab.core.errors import UserError
from kvlab.requests.conversation import turns_of_text
from kvlab.trace.reader import Run
from kvlab.views.frames.facts import fact_positions, moved_parts

MOST_SPANS = 48
LONGEST_LABEL = 40
LONGEST_TEXT = 8_000
TEMPLATE = "template"  # tokens of no part, such as BOS and the role names of a chat template
_LINE = re.compile(r"([^:]*):((?:[0-9]{1,9}-[0-9]{1,9}|[0-9]{1,9})(?:,(?:[0-9]{1,9}-[0-9]{1,9}|[0-9]{1,9}))*)")
Range = tuple[int, int]
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


@dataclass(frozen=True)
class Span:
    """A labelled part of a prompt; `ranges` are (first, last) positions of its tokens, increasing and apart."""

    label: str
    ranges: tuple[Range, ...]

    @property
    def first(self) -> int:
        """The position of its first token."""
        return self.ranges[0][0]

    @property
    def positions(self) -> np.ndarray:
        """The positions of its tokens, increasing."""
        return np.concatenate([np.arange(first, last + 1) for first, last in self.ranges])


def find_spans(run: Run, facts: Sequence[Range] = ()) -> tuple[Span, ...]:
    """The spans of a run's prompt, in its order and without overlap; every token of the prompt is in one.

    `facts` are character spans of the prompt: the tokens that hold a character of one are its own span instead of that
    of the part around it, unless that is a rule. Tokens of no part are `TEMPLATE`.

    Raises:
        UserError: the recorded tokens do not spell the prompt.
    """
    record = run.record
    read = run.tokens[run.tokens["phase"] == "prompt"].sort_values("position")
    texts = read["text"].fillna("").tolist()
    if not texts:
        raise UserError(f"{record.label} has no recorded tokens of its prompt, so its parts are unknown.")
    # The parts of system prompt and prompt as characters of the joined texts.
    moved = moved_parts(texts, record.prompt)
    whole = "".join(texts)
    parts = []
    system = str((record.chat or {}).get("system") or "").strip()
    if system and (place := whole.find(system, 0, min((start + by for start, _, by in moved), default=0))) >= 0:
        parts += parts_of_system(whole, place, place + len(system))
    for label, start, stop in parts_of_prompt(record.prompt, record.chat):
        for begin, end, by in moved:
            if start < end and stop > begin:
                parts.append(Part(label, max(start, begin) + by, min(stop, end) + by))
    # A token is of the part that has its last visible character; one without text is as the one before.
    owner = np.zeros(len(whole) + 1, np.int64)
    for number, part in enumerate(parts, 1):
        owner[part.start : part.stop] = number
    lengths = np.array([len(text) for text in texts])
    visible = np.array([len(text.rstrip()) or len(text) for text in texts])
    anchors = np.maximum(np.cumsum(lengths) - lengths + visible - 1, 0)
    names = [TEMPLATE, *(part.label for part in parts)]
    labels = [names[number] for number in owner[anchors]]
    places = dict(zip(read["position"].tolist(), range(len(texts)), strict=True))
    for number, fact in enumerate(facts, 1):
        inside = [places[position] for position in fact_positions(run.tokens, record.prompt, [fact])]
        if inside and not all(labels[place].startswith("rule ") for place in inside):
            for place in inside:
                labels[place] = "fact" if len(facts) == 1 else f"fact {number}"
    by_label = read["position"].astype("int64").reset_index(drop=True).groupby(pd.Series(labels), sort=False)
    spans = [Span(str(label), _ranges(np.sort(inside.to_numpy()))) for label, inside in by_label]
    return tuple(sorted(spans, key=lambda span: span.first))


def write_spans(spans: Iterable[Span], separator: str = "\n") -> str:
    """The spans as `parse_spans` reads them, one a line: `label: first-last`; with `;` in short, for a link."""
    colon = ":" if separator == ";" else ": "
    return separator.join(
        span.label + colon + ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in span.ranges)
        for span in spans
    )


def parse_spans(text: str, tokens: int) -> tuple[Span, ...]:
    """Spans written by a user, one a line or separated by `;`, in the order of their first tokens.

    `tokens` is the number of tokens of the prompt.

    Raises:
        UserError: a line is no span, or two spans share a label or a token.
    """
    lines = [line.strip() for line in re.split(r"[;\n]", text[: LONGEST_TEXT + 1]) if line.strip()]
    if not lines or len(lines) > MOST_SPANS or len(text) > LONGEST_TEXT:
        raise UserError(f"Give 1 to {MOST_SPANS} spans, one a line, as in rule 1: 12-20.")
    spans = []
    for line in lines:
        match = _LINE.fullmatch(re.sub(r"\s*([:,-])\s*(?=[0-9])", r"\1", line))
        label = "" if match is None else " ".join(match[1].split())
        if match is None or not 0 < len(label) <= LONGEST_LABEL or not label.isprintable():
            raise UserError(
                f"{line[:LONGEST_LABEL]!a} is not a span: write a label of at most {LONGEST_LABEL} characters, a colon "
                "and tokens, as in rule 1: 12-20."
            )
        inside: set[int] = set()
        for piece in match[2].split(","):
            first, last = (int(edge) for edge in (piece.split("-") * 2)[:2])
            if not first <= last < tokens:
                raise UserError(f"{label!a} has the tokens {piece}: give first and last, both from 0 to {tokens - 1}.")
            inside.update(range(first, last + 1))
        spans.append(Span(label, _ranges(np.array(sorted(inside)))))
    owner: dict[int, str] = {}
    for span in spans:
        for position in span.positions.tolist():
            other = owner.setdefault(position, span.label)
            if other != span.label:
                raise UserError(f"Token {position} is in {other!a} and in {span.label!a}: give it to one of them.")
    if len({span.label for span in spans}) < len(spans):
        raise UserError("Two spans have the same label: give each its own, or write all tokens in one line.")
    return tuple(sorted(spans, key=lambda span: span.first))


def _ranges(positions: np.ndarray) -> tuple[Range, ...]:
    """(first, last) of each run of neighbours among increasing positions."""
    runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
    return tuple((int(run[0]), int(run[-1])) for run in runs)


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
    # The question begins at the last line with a mark, else with the last paragraph, line or sentence.
    marks = [match.start() for match in _ASKS.finditer(text, start, stop)]
    end_of_text = start + len(text[start:stop].rstrip())
    units = (_pieces(text, start, end_of_text, unit) for unit in _BREAKS)
    cut = next((pieces[-1][0] for pieces in units if len(pieces) > 1), start)
    if marks and marks[-1] > start:
        cut = marks[-1]
    last = text[cut:stop]
    is_question = asks or cut == start or "?" in last or _ASKS.match(last) is not None
    end = Part(QUESTION if is_question else "end of the prompt", cut, stop)
    # Two to `MOST_BLOCKS` bulleted lines at the beginning, after at most one line that ends with a colon.
    lines = _pieces(text, start, cut, "line")
    heading = []
    if lines and text[slice(*lines[0])].rstrip().endswith(":"):
        heading = [Part("heading of the rules", *lines.pop(0))]
    bullets = list(takewhile(lambda line: _BULLET.match(text[slice(*line)]), lines))
    rules = [*heading, *(Part(f"rule {number}", *line) for number, line in enumerate(bullets, 1))]
    rules = rules if 2 <= len(bullets) <= MOST_BLOCKS else []
    after = rules[-1].stop if rules else start
    # Blocks before the question that begin with its mark, such as `Q:`; none if it has no mark, or too many do.
    begins = []
    if mark := _MARK.match(last):
        same = re.compile(rf"^[ \t]*{mark[1]}[ \t]*\d*:", re.MULTILINE)
        begins = [match.start() for match in same.finditer(text, after, cut)]
    places = pairwise([*begins, cut] if len(begins) <= MOST_SHOTS else [cut])
    shots = [Part(f"shot {number}", *span) for number, span in enumerate(places, 1)]
    return [*rules, *_blocks(text, after, shots[0].start if shots else cut), *shots, end]


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
