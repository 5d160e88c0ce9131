"""Metrics of answers in an order: answer i is looked for at place i of the prediction, and the share found is returned.

The score of answer i alone is the gain that it brings (`of_each`).
"""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from kvlab.common.answer_match import find_answer
from kvlab.common.numerals import numerals

LONGEST_PIECE = 64  # tokens
FEWEST_REPEATS = 3
FEWEST_TOKENS = 12  # "ha ha ha" is no loop


def loop_tokens(ids: Sequence[int]) -> int:
    """The number of last tokens that are one piece of at most `LONGEST_PIECE` tokens, again and again; 0 if none.

    The piece occurs at least `FEWEST_REPEATS` times and the last time perhaps in part; of several such tails the
    longest counts.
    """
    longest = 0
    for size in range(1, LONGEST_PIECE + 1):
        # The longest end of `ids` with this period, which may be too short to be a loop.
        place = len(ids) - 1
        while place - size >= 0 and ids[place] == ids[place - size]:
            place = place - 1
        same = len(ids) - 1 - place
        if same and same + size >= max(FEWEST_REPEATS * size, FEWEST_TOKENS):
            longest = max(longest, same + size)
    return longest


_NUMBERING = re.compile(r"^\s*\d+[.)]")
_PLACES = re.compile(r"->|→|\n|,")


def each_line(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The share of the answers that the prediction's line of the same number contains; a line answers a question."""
    lines = prediction.split("\n")
    pairs = zip(lines, answers, strict=False)
    return sum(find_answer(line, answer) is not None for line, answer in pairs) / len(answers)


def line_results(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The share of the answers that are, by value, the last number of the prediction's line of the same number.

    A line is a step of a calculation; blank lines do not count.
    """
    lines = [line for line in prediction.split("\n") if line.strip()]
    pairs = [(numerals(line), numerals(answer)) for line, answer in zip(lines, answers, strict=False)]
    right = [one and other and one[-1].value == other[-1].value for one, other in pairs]
    return sum(map(bool, right)) / len(answers)


def walk(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The share of the answers that are at their place of the prediction, a list in lines or with arrows or commas.

    Numbers of a numbered list do not count.
    """
    places = [_NUMBERING.sub("", place).strip(" .").lower() for place in _PLACES.split(prediction)]
    pairs = zip(places, answers, strict=False)
    return sum(place == answer.lower() for place, answer in pairs) / len(answers)


def last_line(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The share of the answers that the prediction's last line contains; blank lines do not count."""
    lines = [line for line in prediction.split("\n") if line.strip()]
    return sum(find_answer(lines[-1], answer) is not None for answer in answers) / len(answers) if lines else 0.0


def no_loop(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The share of lines, one for each answer, that are not empty and do not end in a loop of words.

    For turns without right answers, which a benchmark lets a model judge.
    """
    lines = [*prediction.split("\n"), *[""] * len(answers)][: len(answers)]
    words = [line.split() for line in lines]
    numbered = [[sorted(set(line)).index(word) for word in line] for line in words]
    return sum(bool(line) and not loop_tokens(line) for line in numbered) / len(answers)


def of_each(metric: Callable[[Sequence[str]], float], answers: Sequence[str]) -> list[float]:
    """The score of every answer alone, from a metric of answers that is a mean over them."""
    sums = [0.0, *(metric(answers[:count]) * count for count in range(1, len(answers) + 1))]
    return [round(after - before, 9) for before, after in pairwise(sums)]
