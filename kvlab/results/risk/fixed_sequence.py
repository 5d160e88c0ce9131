"""Learn then Test with fixed-sequence testing: the smallest budget of a ladder whose risk is at most a tolerance.

Budgets are tested from the largest down, each at the whole level, and testing stops at the first that is not certified
(Angelopoulos et al., Learn then Test, 2021, section 2.3; Bauer 1991). The probability that any certified budget's risk
exceeds the tolerance is then at most the level, whether or not the risk grows as the budget shrinks, and however the
losses of one prompt at several budgets depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlab.results.risk.bounds import PValue


@dataclass(frozen=True)
class Step:
    """One budget: the losses' sum and mean, and the p-value of "the risk exceeds the tolerance".

    `tested` is whether all larger budgets were certified.
    """

    total: float
    risk: float
    p_value: float
    tested: bool
    certified: bool


def certify_ladder(losses: np.ndarray, tolerance: float, alpha: float, p_value: PValue) -> list[Step]:
    """One step per column of `losses` (prompts, budgets), which go from the largest budget to the smallest.

    Losses are in [0, 1], and 0 or 1 where `p_value` is the binomial test.
    """
    count = len(losses)
    steps = list[Step]()
    open_ = True
    for total in losses.sum(axis=0).tolist():
        found = p_value(total, count, tolerance)
        certified = open_ and found <= alpha
        steps.append(Step(total, total / count, found, open_, certified))
        open_ = certified
    return steps


def drops(risks: np.ndarray) -> list[int]:
    """Places where the risk is lower than at the budget before, which is larger: it is not monotone there."""
    return [place + 1 for place in np.flatnonzero(np.diff(risks) < 0).tolist()]
