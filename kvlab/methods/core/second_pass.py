"""What a method reads once more before it decides about a prompt: its context, seen over the full cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rehearsal:
    """`ask`, then the context again, read by the model while its cache still holds all of the prompt.

    A context of more than `piece` tokens comes in pieces of like length. Each is read by itself over the full prompt,
    behind `ask` and the `OVERLAP` tokens before it, so that memory grows by one piece. `on_policy`: layers decide one
    after the other, each by the queries of one more reading, through the layers that have decided already. `study`:
    the model also answers each of `STUDIES` in so many tokens, the likeliest ones, and request and answer are read too.
    """

    ask: str = "\n"
    piece: int = 2048
    on_policy: bool = False
    study: int = 0


# Self-study: requests about any text, as Attention Matching has them (a summary, what it says, a structure).
STUDIES = ("\n\nIn short:", "\n\nWhat it says, point by point:", "\n\nThe same as JSON:")
OVERLAP = 8  # as KVzip: "starting with" the last 8 tokens of the chunk before
