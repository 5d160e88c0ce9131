"""Plant a needle in a user's text: a number stated once between two sentences, and a question for it. Torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

from kvlab.common.answer_match import find_answer
from kvlab.core.errors import UserError
from kvlab.models.mini import phrasing
from kvlab.tasks.haystack import Window, hide, sentence_starts

WORDINGS = len(phrasing.NEEDLE_PHRASINGS)


@dataclass(frozen=True)
class Planted:
    """A text with needle and question; `fact` is the planted sentence."""

    prompt: str
    answer: str
    fact: str


def plant(text: str, depth: float, seed: int, kind: int = 0) -> Planted:
    """Return the text with a needle at the sentence break nearest to `depth` (0 to 1), and a question.

    The wording is `phrasing.NEEDLE_PHRASINGS[kind]`, which mini was trained on; `seed` selects a name and a number that
    do not occur in the text. Raises UserError if the text is empty or contains every name, or for an unknown wording.
    """
    if not 0 <= kind < WORDINGS:
        raise UserError(f"There is no wording {kind + 1}: choose one of 1 to {WORDINGS}.")
    if not text.strip():
        raise UserError("There is no text to plant a needle in: paste some, or choose a file.")
    wording, (name, value) = phrasing.NEEDLE_PHRASINGS[kind], _draw(text, seed)
    statement = phrasing.needle_statement(wording, name, value)
    query = phrasing.needle_query(wording, name, value)
    return Planted(hide(_window(text), [statement], [depth]) + query.prompt, query.answer.strip(), statement)


def _draw(text: str, seed: int) -> tuple[str, str]:
    random = Random(f"plant/{seed}")
    present = set(re.findall(r"\w+", text.lower()))
    free = [name for name in phrasing.draw_names(random, len(phrasing.NAMES)) if name.lower() not in present]
    if not free:
        raise UserError("The text contains every name that mini knows: plant the needle in a shorter text.")
    value = phrasing.draw_value(random)
    while value in text or find_answer(text, value) is not None:
        value = phrasing.draw_value(random)
    return free[0], value


def _window(text: str) -> Window:
    """The text's words; breaks are inside paragraphs if there are any, as in mini's training."""
    words = tuple(re.findall(r"\S+\s*", text))
    breaks = sentence_starts(words)
    inside = [place for place in breaks if words[place - 1].endswith(" ")]
    return Window(words, tuple(inside or breaks))
