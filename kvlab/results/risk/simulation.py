"""Simulation of a certificate: samples drawn from the measured prompts, each certified as the whole sample was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvlab.results.risk.bounds import PValue

DRAWS = 1000


@dataclass(frozen=True)
class Simulation:
    """What `draws` samples of as many prompts gave.

    `wrong`: samples in which a budget was certified whose risk on all measured prompts is above the tolerance.
    `safe`: by sequence (group and method), the samples in which each budget of its ladder was the smallest certified
    one; the last number counts those in which none was.
    """

    draws: int
    wrong: int
    safe: Mapping[tuple[str, str], tuple[int, ...]]


def simulate(
    tables: Mapping[tuple[str, str], np.ndarray],
    tolerance: float,
    alpha: float,
    p_value: PValue,
    draws: int = DRAWS,
    seed: int = 0,
) -> Simulation:
    """Draw samples with replacement from measured losses and certify each ladder at level `alpha`.

    `tables` has the losses of each group and method, (prompts, budgets), largest budget first. Methods of one group see
    the same drawn prompts, as in an evaluation. The measured prompts are then all prompts there are, so their mean loss
    is the true risk.
    """
    wrong = np.zeros(draws, bool)
    safe: dict[tuple[str, str], tuple[int, ...]] = {}
    for (group, arm), losses in tables.items():
        count, budgets = losses.shape
        random = np.random.default_rng([seed, *group.encode()])
        chosen = (np.bincount(random.integers(count, size=count), minlength=count) for _ in range(draws))
        totals = np.stack([times @ losses for times in chosen])  # (draws, budgets)
        known = {total: p_value(total, count, tolerance) <= alpha for total in np.unique(totals).tolist()}
        passed = np.vectorize(known.__getitem__, otypes=[bool])(totals)
        certified = np.logical_and.accumulate(passed, axis=1)
        wrong |= (certified & (losses.mean(axis=0) > tolerance)).any(axis=1)
        smallest = np.bincount(certified.sum(axis=1), minlength=budgets + 1).tolist()
        safe[group, arm] = (*smallest[1:], smallest[0])
    return Simulation(draws, int(wrong.sum()), safe)
