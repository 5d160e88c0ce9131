"""Whether a continuation holds the expected answer: right, nearly (with its first wrong token), or wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np

from kvlab.answers import is_square, whole_words

Kind = Literal["right", "nearly", "wrong", "unfinished"]
KINDS: tuple[Kind, ...] = ("right", "nearly", "wrong", "unfinished")  # best first
NO_REFERENCE = "the full cache does not answer either: rankings say how alike the caches are, not which is right"
MOST_SIGNS = 40  # of what was written in the answer's place


@dataclass(frozen=True)
class Verdict:
    """What a continuation made of the answer.

    Attributes:
        kind: `right`: the answer stands in it as whole words, wherever. `nearly`: at least half of the answer's
            letters, from the first on, stand at one place. `wrong`: neither. `unfinished`: there is no text.
        at: index of the generated token the answer begins in; None where it is wrong.
        wrote: the words in the answer's place, or those the text begins with.
        wrong: the first wrong token, "" where the text ends too early (or nothing is wrong).
        expected: the token that should have stood there, "" where the answer was already whole.
    """

    kind: Kind
    at: int | None = None
    wrote: str = ""
    wrong: str = ""
    expected: str = ""


def judge(texts: Sequence[str], answer: str, reference: Sequence[str] = ()) -> Verdict:
    """The verdict on a continuation given as the texts of its tokens; `reference` are those of the full cache's.

    Case and the amount of white space do not count. "Right" is what `kvlab eval` counts as found (whole_match_all).
    """
    text = "".join(texts)
    if not texts:
        return Verdict("unfinished")
    found = whole_words(answer).search(text)
    if found is not None:
        return Verdict("right", token_at(texts, found.start()), " ".join(found[0].split()))
    letters, places = _letters(text)
    wanted = _letters(answer)[0]
    start, shared = _best_place(letters, wanted)
    if 2 * shared < len(wanted):
        return _wrong(texts, reference)
    end = places[start + shared] if start + shared < len(places) else len(text)
    wrong = texts[token_at(texts, end)] if end < len(text) else ""
    expected = _expected(reference, answer, shared)
    return Verdict("nearly", token_at(texts, places[start]), _words(text[places[start] :]), wrong, expected)


def answer_tokens(texts: Sequence[str], answer: str) -> tuple[int, int] | None:
    """(first, last) index of the tokens that spell the answer where it first stands in them; None where it does not."""
    found = whole_words(answer).search("".join(texts))
    return None if found is None else (token_at(texts, found.start()), token_at(texts, found.end() - 1))


def token_at(texts: Sequence[str], sign: int) -> int:
    """The index of the token that holds this character of the joined texts."""
    return int(np.searchsorted(list(accumulate(len(text) for text in texts)), sign, side="right"))


def _wrong(texts: Sequence[str], reference: Sequence[str]) -> Verdict:
    """A text without the answer: named is the first token that is not the full cache's."""
    pairs = zip(texts, reference, strict=False)
    wrong, expected = next(((own, right) for own, right in pairs if own != right), ("", ""))
    return Verdict("wrong", None, _words("".join(texts)), wrong, expected)


def _expected(reference: Sequence[str], answer: str, shared: int) -> str:
    """The full cache's token at the answer's letter number `shared`; without one, the answer's own word there."""
    letters, places = _letters(answer)
    if shared >= len(letters):
        return ""
    found = whole_words(answer).search("".join(reference))
    if found is None:
        return (answer[places[shared] :].split() or [""])[0]
    inside = _letters(found[0])[1]
    return reference[token_at(reference, found.start() + inside[min(shared, len(inside) - 1)])]


def _letters(text: str) -> tuple[str, list[int]]:
    """The text in lower case with each run of white space as one space, and where in `text` each sign stands."""
    kept = [i for i, sign in enumerate(text) if not sign.isspace() or (i and not text[i - 1].isspace())]
    return "".join(" " if text[i].isspace() else _lower(text[i]) for i in kept), kept


def _lower(sign: str) -> str:
    """One sign for one sign: a few have two in lower case."""
    return sign.lower() if len(sign.lower()) == 1 else sign


def _best_place(letters: str, wanted: str) -> tuple[int, int]:
    """The start of a word from which most letters of `wanted` follow, the first of equals, and how many do."""
    best = (0, 0)
    for start, sign in enumerate(letters):
        joined = start and (letters[start - 1] + sign).isalnum() and not is_square(sign)
        if sign == " " or joined:
            continue
        pairs = enumerate(zip(letters[start:], wanted, strict=False))
        short = min(len(letters) - start, len(wanted))
        shared = next((i for i, (own, right) in pairs if own != right), short)
        best = max(best, (start, shared), key=lambda place: place[1])
    return best


def _words(text: str) -> str:
    """The first line that says something, cut to a length that fits a cell."""
    line = next((" ".join(line.split()) for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= MOST_SIGNS else line[: MOST_SIGNS - 1] + "…"
