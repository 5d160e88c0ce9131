"""Judge whether a continuation holds the expected answer: right, nearly (with its first wrong token), or wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

import numpy as np

from kvlab.common.answer_match import Folded, find_answer, fold_for, starts_word
from kvlab.common.formatting import shared_prefix
from kvlab.common.thoughts import hide_thinking

Kind = Literal["right", "nearly", "wrong", "unfinished"]
KINDS: tuple[Kind, ...] = ("right", "nearly", "wrong", "unfinished")  # best first
NO_REFERENCE = "the full cache's own answer is another one, so rankings show similarity to it, not correctness"
MOST_CHARACTERS = 90  # of the text shown in place of the answer


@dataclass(frozen=True)
class Verdict:
    """Verdict on a continuation.

    Attributes:
        kind: `right`: the text contains the answer (`kvlab.common.answer_match`). `nearly`: it contains at least the
            first half of the answer's letters. `wrong`: neither. `unfinished`: there is no text.
        at: index of the generated token in which the answer begins; None if wrong.
        wrote: the words in the answer's place; if wrong, the words from where the text departs from the full cache's,
            after "…", or its first words.
        wrong: the first wrong token, "" if the text ends too early (or nothing is wrong).
        expected: the token expected there, "" if the answer was already complete.
    """

    kind: Kind
    at: int | None = None
    wrote: str = ""
    wrong: str = ""
    expected: str = ""


def judge(texts: Sequence[str], answer: str, reference: Sequence[str] = ()) -> Verdict:
    """Judge a continuation given as token texts; `reference` are those of the full cache.

    "Right" is what `kvlab eval` counts as found (whole_match_all). Thinking is no answer (`kvlab.common.thoughts`).
    """
    text = hide_thinking("".join(texts))
    if not texts:
        return Verdict("unfinished")
    found = find_answer(text, answer)
    if found is not None:
        return Verdict("right", token_at(texts, found[0]), " ".join(text[slice(*found)].split()))
    letters = _letters(text, answer)
    wanted = _letters(answer, answer).text
    # The word start from which most of the answer's letters follow (the first on ties), and how many.
    start = 0
    shared = 0
    for place in range(len(letters.text)):
        if starts_word(letters, place):
            follow = shared_prefix(letters.text[place : place + len(wanted)], wanted)
            start, shared = max((start, shared), (place, follow), key=lambda best: best[1])
    if 2 * shared < len(wanted) or not wanted:
        pairs = zip(texts, reference, strict=False)
        wrong, expected = next(((piece, right) for piece, right in pairs if piece != right), ("", ""))
        # The words from the first that differs from the reference's, after "…"; else the text's first words.
        common = shared_prefix(text, hide_thinking("".join(reference)))
        departs = max((at + 1 for at, character in enumerate(text[:common]) if character.isspace()), default=0)
        if common == len(text) or not text[:departs].strip() or not text[departs:].strip():
            return Verdict("wrong", None, _words(text), wrong, expected)
        return Verdict("wrong", None, f"… {_words(text[departs:])}", wrong, expected)
    places = letters.sources
    end = places[start + shared] if start + shared < len(places) else len(text)
    wrong = texts[token_at(texts, end)] if end < len(text) else ""
    expected = _expected(reference, answer, shared)
    return Verdict("nearly", token_at(texts, places[start]), _words(text[places[start] :]), wrong, expected)


def answer_tokens(texts: Sequence[str], answer: str) -> tuple[int, int] | None:
    """(first, last) index of the tokens that spell the answer's first occurrence; None if there is none."""
    found = find_answer(hide_thinking("".join(texts)), answer)
    return None if found is None else (token_at(texts, found[0]), token_at(texts, found[1] - 1))


def token_at(texts: Sequence[str], character: int) -> int:
    """Index of the token that holds this character of the joined texts."""
    return int(np.searchsorted(list(accumulate(len(text) for text in texts)), character, side="right"))


def _expected(reference: Sequence[str], answer: str, shared: int) -> str:
    """The full cache's token at the answer's letter number `shared`; without one, the answer's own word there."""
    letters = _letters(answer, answer)
    if shared >= len(letters.text):
        return ""
    text = hide_thinking("".join(reference))
    found = find_answer(text, answer)
    if found is None:
        return (answer[letters.sources[shared] :].split() or [""])[0]
    inside = _letters(text[slice(*found)], answer).sources
    return reference[token_at(reference, found[0] + inside[min(shared, len(inside) - 1)])]


def _letters(text: str, answer: str) -> Folded:
    """The text folded for this answer, with each run of white space as one space; sources are places of the text."""
    folded = fold_for(text, answer)
    spaces = [character.isspace() for character in folded.text]
    kept = [i for i, space in enumerate(spaces) if not space or (i and not spaces[i - 1])]
    joined = "".join(" " if spaces[i] else folded.text[i] for i in kept)
    return replace(folded, text=joined, sources=[folded.sources[i] for i in kept])


def _words(text: str) -> str:
    """The first non-empty line, truncated to fit a cell."""
    line = next((" ".join(line.split()) for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= MOST_CHARACTERS else line[: MOST_CHARACTERS - 1] + "…"
