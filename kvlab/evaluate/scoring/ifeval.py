"""IFEval's checks of instructions, by lm-eval's own functions (the extra `lm-eval`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from kvlab.core.validation import read_json


def _followed(prediction: str, answers: Sequence[str], loosely: bool) -> list[bool]:
    """Whether each instruction is followed; `answers` are instructions as `kvlab.tasks.loaders.ifeval` writes them."""
    from lm_eval.tasks.ifeval import utils

    asked: list[dict[str, Any]] = [read_json(answer) for answer in answers]
    given = utils.InputExample(
        key=0,
        instruction_id_list=[one["id"] for one in asked],
        prompt=asked[0]["prompt"],
        kwargs=[one["kwargs"] for one in asked],
    )
    check = utils.test_instruction_following_loose if loosely else utils.test_instruction_following_strict
    return list(check(given, prediction).follow_instruction_list)


def share_followed(
    prediction: str, answers: Sequence[str], classes: Sequence[str] = (), loosely: bool = False
) -> float:
    """The share of the instructions that the prediction follows (of one prompt; IFEval's instruction level)."""
    found = _followed(prediction, answers, loosely)
    return sum(found) / len(found)


def all_followed(prediction: str, answers: Sequence[str], classes: Sequence[str] = (), loosely: bool = False) -> float:
    """1 if the prediction follows every instruction (IFEval's prompt level)."""
    return float(all(_followed(prediction, answers, loosely)))


share_followed_loosely = partial(share_followed, loosely=True)
all_followed_loosely = partial(all_followed, loosely=True)
