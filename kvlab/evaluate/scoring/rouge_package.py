"""ROUGE from the package `rouge`, as used by LongBench, H2O, LESS and CaM (`pip install 'kvlab[rouge]'`).

It splits sentences at every full stop and does not normalise words, so its values differ from rouge-score's. An empty
prediction, or one with a sentence too long for its recursion, scores 0, as in LongBench.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any


@cache
def _scorer(kind: str) -> Any:
    from rouge import Rouge

    return Rouge(metrics=[kind], stats=["f"])


def _one(kind: str, prediction: str, answer: str) -> float:
    try:
        return float(_scorer(kind).get_scores(prediction, answer)[0][kind]["f"])
    except (ValueError, RecursionError):
        return 0.0


def rouge_1(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """ROUGE-1's F measure from the package rouge, best over the answers."""
    return max(_one("rouge-1", prediction, answer) for answer in answers)


def rouge_2(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """ROUGE-2's F measure from the package rouge, best over the answers."""
    return max(_one("rouge-2", prediction, answer) for answer in answers)


def rouge_l(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """ROUGE-L's F measure over the summary from the package rouge, best over the answers."""
    return max(_one("rouge-l", prediction, answer) for answer in answers)
