"""exactmerge 2 against its rule, head by head in float64: the fit that serves held-back queries best is taken."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from kvlab.cache import executor
from kvlab.methods.columns import Columns
from kvlab.methods.scorers.around.alternating import Alternating
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.refitting.checked_match import CheckedMatch, Fit
from tests.core.layers import draw
from tests.core.test_attention_matching import ASKED, BATCH, GROUP, HEADS, SLOTS, WINDOW, rows_of, solved, view

RIDGE, UNTOUCHED, WINDOW_WEIGHT, BOX = 0.1, 0.25, 3.0, 3.0


def held_back() -> Tensor:
    """Every second query of the rehearsal, and every second of the window counted from its end, in each query head."""
    asked = [n % 2 == 1 for n in range(ASKED)] + [(SLOTS - 1 - row) % 2 == 1 for row in range(SLOTS - WINDOW, SLOTS)]
    return torch.tensor(asked * GROUP)


def log_mass_of(kept: Tensor, heard: Tensor, whole: Tensor) -> Tensor:
    """Weights w with kept w near `whole`: ridge towards 1, then two projected gradient steps within the box."""
    rows, low, high = kept * heard, math.exp(-BOX), math.exp(BOX)
    ones = torch.ones(rows.shape[1], dtype=torch.float64)
    strength = RIDGE * float(rows.square().sum()) / rows.shape[1]
    w = solved(rows, whole * heard, ones[:, None], strength)[:, 0].clamp(low, high)
    vector = ones.clone()
    for _ in range(8):
        vector = rows.T @ (rows @ vector)
        vector = vector / vector.norm()
    steepest = 1.1 * float((rows @ vector).square().sum())
    for _ in range(2):
        w = (w - rows.T @ (rows @ w - whole[:, 0] * heard[:, 0]) / steepest).clamp(low, high)
    return w


def fitted(
    fit: Fit, attention: Tensor, weight: Tensor, stays: Tensor, value: Tensor, score: Tensor
) -> tuple[Tensor, Tensor]:
    """(w, values) of what stays, from these queries."""
    kept, heard = attention[:, stays], weight.sqrt()[:, None]
    w, fresh = torch.ones(len(stays), dtype=torch.float64), value[stays].clone()
    if fit == "none":
        return w, fresh
    if fit == "both":
        w = log_mass_of(kept, heard, attention.sum(1, keepdim=True))
    shares = kept * w / (kept * w).sum(1, keepdim=True)
    free = score.argsort(descending=True, stable=True).argsort() >= int(UNTOUCHED * len(stays))
    strength = RIDGE * float((shares[:, free] * heard).square().sum()) / int(free.sum())
    target = (attention @ value - shares[:, ~free] @ fresh[~free]) * heard
    fresh[free] = solved(shares[:, free] * heard, target, fresh[free], strength)
    return w, fresh


def worst_error(attention: Tensor, stays: Tensor, value: Tensor, w: Tensor, fresh: Tensor, count: int) -> float:
    """Mean relative output error of the `count` queries that are served worst."""
    kept = attention[:, stays] * w
    output, truth = kept / kept.sum(1, keepdim=True) @ fresh, attention @ value
    return float(((output - truth).norm(dim=1) / truth.norm(dim=1)).sort(descending=True).values[:count].mean())


@pytest.mark.parametrize("worst", [0.1, 0.5])
@pytest.mark.parametrize("fits", [("none", "values"), ("none", "values", "both")])
def test_each_head_takes_the_fit_that_serves_the_worst_of_the_held_back_queries(
    fits: tuple[Fit, ...], worst: float
) -> None:
    given = view()
    settle = CheckedMatch(fits, worst, ASKED, WINDOW, WINDOW_WEIGHT, RIDGE, UNTOUCHED, BOX)
    plan = settle.settle(given, LowestScore(1, 2))
    after = executor.apply(given.slots.map(torch.clone), plan)
    for b, h in product(range(BATCH), range(HEADS)):
        stays, held = plan.keep[b, h].nonzero()[:, 0], held_back()
        attention, weight = rows_of(given, b, h, WINDOW_WEIGHT)
        value, score = given.slots.values[b, h].double(), given.slots.score[b, h, stays]
        tried = {fit: fitted(fit, attention[~held], weight[~held], stays, value, score) for fit in fits}
        judges = attention[held & (weight > 0)]
        count = max(1, int(worst * len(judges)))
        best = min(fits, key=lambda fit: worst_error(judges, stays, value, *tried[fit], count))
        w, expected = fitted(best, attention, weight, stays, value, score)
        torch.testing.assert_close(after.log_mass[b, h, stays].double(), w.log(), rtol=1e-3, atol=2e-4)
        torch.testing.assert_close(after.values[b, h, stays].double(), expected, rtol=2e-3, atol=2e-4)


class Given:
    """A score that is known."""

    def __init__(self, score: Tensor) -> None:
        self.score = score

    def update(self, slots: object, seen: object, first: bool) -> dict[str, Tensor]:
        """As it was given."""
        return {"score": self.score}


def test_two_scores_take_turns() -> None:
    """A slot is as good as the turn at which one of the two picks it; a slot both would pick is picked by the first."""
    one, other = draw(1, 1, 2, 9, 1)[..., 0], draw(2, 1, 2, 9, 1)[..., 0]
    slots = Columns(True, None).fresh(draw(3, 1, 2, 9, 4), draw(4, 1, 2, 9, 4), torch.arange(9).expand(1, 2, -1), {})
    score = Alternating(Given(one), Given(other)).update(slots, None, True)["score"]  # type: ignore[arg-type]
    for head in range(2):
        picked: list[int] = []
        for turn in range(9):
            for given in (one, other):
                slot = sorted(range(9), key=lambda place: -float(given[0, head, place]))[turn]
                picked += [slot] if slot not in picked else []
        assert score[0, head].argsort(descending=True).tolist() == picked
