"""The texts of a comparison while they are written: what the engine reports, and what a page shows."""

from typing import Literal

from kvlab.core.validation import Frozen

WriterState = Literal["waiting", "reading", "writing", "ended", "cancelled", "failed"]


class LiveText(Frozen):
    """The text that one run has written so far.

    `left_at` is the span, in the characters of `text`, of the first token that differs from the full cache's text at
    the same position, and `left_token` its number from 1. `held` is the share of the full cache's slots that the run
    holds; None before it has dropped anything.
    """

    label: str
    method: str
    state: WriterState = "waiting"
    text: str = ""
    tokens: int = 0
    left_at: tuple[int, int] | None = None
    left_token: int = 0
    held: float | None = None


class LiveTexts(Frozen):
    """The texts of all runs of one comparison, in order; `title` names the prompt of a batch, `3 of 12: a lamp`."""

    title: str = ""
    prompt_end: str = ""
    texts: tuple[LiveText, ...] = ()
