"""The pipeline of a requested method with the tokens that the request keeps, restores or drops."""

from __future__ import annotations

from collections.abc import Sequence

from kvlab.core.choice import MethodChoice
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.reading import Reading
from kvlab.core.errors import UserError
from kvlab.core.methods.wrappers.pin_tokens import keeping
from kvlab.core.methods.wrappers.read_back import reading_back
from kvlab.core.methods.wrappers.restore import giving_back


def with_changes(pipeline: Pipeline, choice: MethodChoice, layers: Sequence[int], room: int) -> Pipeline:
    """The pipeline with the pinned and restored tokens of `choice`; for one cache only.

    `layers`: compressed layers of the model; `room`: tokens that may be generated.
    """
    pipeline = keeping(pipeline, choice.force_keep)
    return pipeline if choice.returned is None else giving_back(pipeline, choice.returned, layers, room)


def reading_with_changes(reading: Reading | None, choice: MethodChoice) -> Reading | None:
    """The reading with the slots that `choice` returns to it.

    Raises UserError if it returns slots to the reading of a method that reads everything.
    """
    if choice.returned is not None and choice.returned.kind == "read" and reading is None:
        raise UserError(f"{choice.method} reads every slot already: choose a method with a reading, as in read=quest.")
    return reading if choice.returned is None else reading_back(reading, choice.returned)


def check_tokens(choice: MethodChoice, tokens: int) -> None:
    """Raise UserError if `choice` changes a token that a text of so many tokens does not have."""
    restored = choice.returned.tokens if choice.returned else ()
    last = max((*choice.force_keep, *restored), default=0)
    if last >= tokens:
        raise UserError(f"Token {last} cannot be kept: the prompt has {tokens:,} tokens, counted from 0.")
