"""The expected answer of a prompt and the facts it needs, as spans of the prompt's characters."""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from kvlab.common.answer_match import find_answer
from kvlab.common.numerals import quantity
from kvlab.core import UserError, check_text

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
            if stop - start > LONGEST_FACT:
                # Whole words around the answer, of a long sentence.
                answer_start = start + place[0]
                answer_stop = start + place[1]
                around = max(0, LONGEST_FACT - (place[1] - place[0])) // 2
                first = max(start, answer_start - around)
                last = min(stop, answer_stop + around)
                while start < first < answer_start and not text[first - 1].isspace():
                    first += 1
                while answer_stop < last < stop and not text[last].isspace():
                    last -= 1
                piece = text[first:last]
                start = first + len(piece) - len(piece.lstrip())
                stop = first + len(piece.rstrip())
            found.append((start, stop))
    return found


LONGEST_ANSWER = 2_000


def _is_span(span: tuple[int, int]) -> tuple[int, int]:
    if span[0] >= span[1]:
        raise ValueError("a fact starts before it stops")
    return span


Place = Annotated[int, Field(ge=0, lt=2**31)]
Fact = Annotated[
    tuple[Place, Place], AfterValidator(_is_span), Field(description="start and stop in the prompt's characters")
]


def check_answer(answer: str) -> str:
    """The answer without surrounding white space. Raises UserError if it is empty or too long."""
    if not answer.strip():
        raise UserError("The expected answer is empty: write the words that a right continuation holds, or leave it.")
    if len(answer) > LONGEST_ANSWER:
        raise UserError(f"The expected answer has {len(answer):,} characters: give one of at most {LONGEST_ANSWER:,}.")
    return check_text(answer.strip(), "The expected answer")


def find_facts(prompt: str, facts: Iterable[str | Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Each fact as (start, stop) in the prompt; text stands for its first occurrence.

    A number is matched as answers are: as a whole, by value. So is text without an exact match, ignoring case, quotes
    and letter forms. Raises UserError if the prompt lacks one of them.
    """
    spans = []
    for fact in facts:
        if isinstance(fact, str):
            text = fact.strip()
            start = prompt.find(text) if text else -1
            written = (start, start + len(text)) if start >= 0 else None
            alike = find_answer(prompt, text) if written is None or quantity(text) is not None else None
            place = alike or written
            if place is None:
                raise UserError(f"The prompt has no “{text[:80]}”: copy the fact from the prompt, letter by letter.")
            spans.append(place)
        elif len(fact) == 2 and 0 <= fact[0] < fact[1] <= len(prompt):
            spans.append((fact[0], fact[1]))
        else:
            shown = " to ".join(map(str, fact))
            raise UserError(f"The fact {shown} is no part of the prompt: it has the characters 0 to {len(prompt)}.")
    return tuple(spans)
