"""Scores that are equal by construction, whatever the processor: of repeated tokens, of constant windows.

Slots with equal scores leave by age, the oldest first (`Slots.lowest`). That is a rule only if such scores are equal to
the last bit, which sums in another order are not. So scorers round where equal scores are likely.
"""

from __future__ import annotations

from torch import Tensor

STEP = 2.0**-16


def round_to_step(score: Tensor, step: float = STEP) -> Tensor:
    """The nearest multiples of `step`, a power of two."""
    return (score / step).round() * step


def round_relatively(score: Tensor) -> Tensor:
    """`score` >= 0 to within .02 %: its logarithm to base 2 in multiples of 2^-12."""
    # In double precision, since a vector of floats and the few numbers behind it are not raised alike to the last bit.
    return round_to_step(score.log2(), 2.0**-12).double().exp2().float()
