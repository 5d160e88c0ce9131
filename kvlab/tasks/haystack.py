"""The haystack: public-domain prose that mini was not trained on, and hiding statements in it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from random import Random

from kvlab.common.answer_match import find_answer
from kvlab.core import UserError, asset_path
from kvlab.models.info import mini

_SENTENCE_END = re.compile(r"[.!?][”’\"')_]*\s+$")
_TITLE = re.compile(r"(^|[“‘(_])(Mr|Mrs|Dr|St|Messrs|No|vol|[A-Z])\.\s+$")
_SENTENCE_START = re.compile(r"[“‘(_]*[A-Z]")


@cache
def haystack() -> tuple[tuple[str, ...], dict[int, None]]:
    """Return every word of the shipped books, each with the white space that follows it, and where sentences start.

    The second are the indices of words, in order, as a dictionary for fast look-up.
    """
    paths = sorted(asset_path("prompts/haystack").glob("*.txt"))
    words = tuple(word for path in paths for word in re.findall(r"\S+\s*", path.read_text(encoding="utf-8")))
    return words, dict.fromkeys(sentence_starts(words))


def sentence_starts(words: Sequence[str]) -> list[int]:
    """Return the indices of words (with their trailing white space) that start a new sentence."""
    return [
        i
        for i, (before, here) in enumerate(pairwise(words), start=1)
        if _SENTENCE_END.search(before) and not _TITLE.search(before) and _SENTENCE_START.match(here)
    ]


@dataclass(frozen=True)
class Window:
    """Consecutive words of the haystack; `breaks` are the indices between two sentences of one paragraph."""

    words: tuple[str, ...]
    breaks: tuple[int, ...]

    def first(self, count: int) -> "Window":
        return Window(self.words[:count], tuple(place for place in self.breaks if place < count))

    @property
    def text(self) -> str:
        """The words as text, without trailing white space."""
        return "".join(self.words).rstrip()


def draw_window(random: Random, count: int) -> Window:
    """Return `count` words starting at a random sentence, wrapping around after the last book."""
    words, starts = haystack()
    start = random.choice(list(starts))
    places = [(start + i) % len(words) for i in range(count)]
    breaks = tuple(i for i, place in enumerate(places) if i and place in starts and words[place - 1].endswith(" "))
    return Window(tuple(words[place] for place in places), breaks)


def hide(window: Window, statements: Sequence[str], depths: Sequence[float]) -> str:
    """Return the window's text with every statement at the break nearest to its depth, in the order given.

    `depths` must be ascending: 0 is the start of the text, 1 its end, measured in characters. A statement goes between
    two sentences, before the first word or after the last, always preceded by a space.
    """
    pieces: list[str] = []
    start = 0
    for place, statement in zip(break_places(window, depths), statements, strict=True):
        between = "".join(window.words[start:place])
        if between and place == len(window.words):
            between = f"{between.rstrip()} "
        pieces += [between or ("" if pieces else " "), f"{statement} "]
        start = place
    return "".join([*pieces, *window.words[start:]]).rstrip()


def break_places(window: Window, depths: Sequence[float]) -> list[int]:
    """Return the index of one word per depth, where a sentence or the window starts or ends; distinct if possible."""
    ends = [0, *accumulate(len(word) for word in window.words)]
    every = sorted({0, *window.breaks, len(window.words)})
    free = set(every)
    chosen = []
    for depth in depths:
        nearest = min(free or every, key=lambda place: (abs(ends[place] - depth * ends[-1]), place))
        chosen.append(nearest)
        free.discard(nearest)
    return sorted(chosen)


WORDINGS = len(mini.NEEDLE_PHRASINGS)


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
    # A name and a number that do not occur in the text.
    random = Random(f"plant/{seed}")
    present = set(re.findall(r"\w+", text.lower()))
    free = [name for name in random.sample(mini.NAMES, len(mini.NAMES)) if name.lower() not in present]
    if not free:
        raise UserError("The text contains every name that mini knows: plant the needle in a shorter text.")
    name = free[0]
    value = mini.draw_value(random)
    while value in text or find_answer(text, value) is not None:
        value = mini.draw_value(random)
    wording = mini.NEEDLE_PHRASINGS[kind]
    statement = mini.needle_statement(wording, name, value)
    query = mini.needle_query(wording, name, value)
    # Breaks are inside paragraphs if there are any, as in mini's training.
    words = tuple(re.findall(r"\S+\s*", text))
    breaks = sentence_starts(words)
    inside = [place for place in breaks if words[place - 1].endswith(" ")]
    window = Window(words, tuple(inside or breaks))
    return Planted(hide(window, [statement], [depth]) + query.prompt, query.answer.strip(), statement)
