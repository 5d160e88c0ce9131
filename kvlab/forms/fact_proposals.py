"""The sentences of a prompt that hold the expected answer, proposed as the fact behind it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvlab.common.answer_match import find_answer

Span = tuple[int, int]
LONGEST_FACT = 300  # characters; of a longer sentence the words around the answer
# A sentence ends at its mark, with the quotes and brackets that follow, before white space; CJK marks need none. A line
# break ends it too, unless the next line goes on with a small letter, as in a text of fixed width.
END = re.compile(r"[.!?][\"'”’»)\]]*(?=\s)|[。！？]|\n(?![a-zà-öø-ÿ])")


def sentences(text: str) -> list[Span]:
    """(start, stop) of every sentence of the text, without the white space around it."""
    found = []
    start = 0
    for stop in [*(match.end() for match in END.finditer(text)), len(text)]:
        piece = text[start:stop]
        if words := piece.strip():
            begin = start + piece.index(words[0])
            found.append((begin, begin + len(words)))
        start = stop
    return found


def proposed_facts(text: str, answers: Sequence[str]) -> list[Span]:
    """The sentences that hold one of the answers, in order; questions state no fact and are left out."""
    found = []
    for start, stop in sentences(text):
        sentence = text[start:stop]
        place = next(filter(None, (find_answer(sentence, answer) for answer in answers)), None)
        if place is not None and not sentence.rstrip("\"'”’»)]").endswith(("?", "？")):
            found.append(_shortened(text, (start, stop), (start + place[0], start + place[1])))
    return found


def _shortened(text: str, sentence: Span, answer: Span) -> Span:
    """The sentence, or of a long one whole words around the answer."""
    start, stop = sentence
    if stop - start <= LONGEST_FACT:
        return sentence
    around = max(0, LONGEST_FACT - (answer[1] - answer[0])) // 2
    first = max(start, answer[0] - around)
    last = min(stop, answer[1] + around)
    while start < first < answer[0] and not text[first - 1].isspace():
        first += 1
    while answer[1] < last < stop and not text[last].isspace():
        last -= 1
    piece = text[first:last]
    return first + len(piece) - len(piece.lstrip()), first + len(piece.rstrip())
