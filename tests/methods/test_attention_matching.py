"""Attention Matching against its two least-squares problems, solved head by head in float64 as stacked systems."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from kvlab.core.attention.pass_view import PassView
from kvlab.core.cache import make_cache
from kvlab.core.cache.table import apply_plan
from kvlab.core.contract.pipeline import LowestScore
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.slot_columns import Columns
from kvlab.core.contract.view import References, View
from kvlab.core.methods.merging.attention_matching import Pursuit
from kvlab.core.methods.settlers.matching import MatchAttention
from kvlab.models.load import LoadedModel, prepare
from tests.cache.layers import draw
from tests.families import tiny_model

BATCH, HEADS, GROUP, SLOTS, DIM, ASKED, WINDOW = 2, 2, 2, 20, 6, 9, 4
SCALING = DIM**-0.5


def view(budget: int = 8) -> View:
    """One layer after its prompt: the second row has a padded slot, and a padded query among the references."""
    key, value = draw(1, BATCH, HEADS, SLOTS, DIM), draw(2, BATCH, HEADS, SLOTS, DIM)
    position = torch.arange(SLOTS).expand(BATCH, HEADS, -1).int()
    slots = replace(Columns(True, None).fresh(key, value, position, {}), score=draw(3, BATCH, HEADS, SLOTS).abs())
    slots = replace(slots, valid=torch.ones(BATCH, HEADS, SLOTS, dtype=torch.bool))
    slots.valid[1, :, 0] = False
    bias = torch.zeros(BATCH, HEADS, 1, SLOTS).masked_fill(~slots.valid[:, :, None], -torch.inf)
    layer_pass = PassView(2 * draw(4, BATCH, HEADS * GROUP, SLOTS, DIM), key, bias, None, SCALING)
    real = torch.ones(BATCH, ASKED)
    real[1, 3] = 0
    asked = References(2 * draw(5, BATCH, HEADS * GROUP, ASKED, DIM), real)
    budgets = torch.full((BATCH, HEADS), budget)
    seen_tokens = torch.full((BATCH,), SLOTS)
    return View(
        slots, layer_pass, budgets, seen_tokens, "prefill", SLOTS - budget, budget, False, 0, 1, references=asked
    )


def rows_of(given: View, b: int, h: int, window_weight: float, keys: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(attention (N, S), weight (N,)) in float64 of every reference and window query of one head's group.

    With `keys` (S, d), to these, as a share of what the slots' own keys get in all.
    """
    found, weights = [], []
    key = given.slots.keys[b, h].double()
    asked = given.references
    assert asked is not None

    def note(query: Tensor, blind: Tensor, weight: float) -> None:
        own, other = (
            ((each @ query.double()) * SCALING).exp().masked_fill(blind, 0)
            for each in (key, key if keys is None else keys.double())
        )
        found.append(other / own.sum())
        weights.append(weight)

    for g in range(GROUP):
        for n in range(ASKED):
            note(asked.query[b, h * GROUP + g, n], ~given.slots.valid[b, h], float(asked.real[b, n]))
        for row in range(SLOTS - WINDOW, SLOTS) if window_weight else ():
            blind = ~given.slots.valid[b, h] | (torch.arange(SLOTS) > row)
            note(given.layer_pass.query[b, h * GROUP + g, row], blind, window_weight)
    return torch.stack(found), torch.tensor(weights, dtype=torch.float64)


def solved(rows: Tensor, target: Tensor, start: Tensor, strength: float) -> Tensor:
    """argmin ||rows W - target||^2 + strength ||W - start||^2, as one stacked system."""
    eye = math.sqrt(strength) * torch.eye(rows.shape[1], dtype=torch.float64)
    whole = torch.cat([rows, eye]), torch.cat([target, math.sqrt(strength) * start])
    return torch.linalg.lstsq(*whole, driver="gelsd").solution


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("window", "untouched"), [(0.0, 0.0), (3.0, 0.25)])
def test_values_and_mass_are_the_least_squares_solutions(bias: bool, window: float, untouched: float) -> None:
    given, ridge = view(), 0.1
    settle = MatchAttention(ASKED, WINDOW if window else 0, window or 1.0, bias, True, ridge, untouched, 3.0, 0)
    plan = settle.settle(given, LowestScore(1, 2))
    after = apply_plan.apply(given.slots.map(torch.clone), plan)
    for b, h in product(range(BATCH), range(HEADS)):
        stays = plan.keep[b, h].nonzero()[:, 0]
        assert len(stays) == 8
        attention, weight = rows_of(given, b, h, window)
        heard, value = weight.sqrt()[:, None], given.slots.values[b, h].double()
        kept = attention[:, stays]
        w = torch.ones(len(stays), dtype=torch.float64)
        if bias:
            strength = ridge * float((kept * heard).square().sum()) / len(stays)
            w = solved(kept * heard, heard, w[:, None], strength)[:, 0].clamp(math.exp(-3), math.exp(3))
        torch.testing.assert_close(after.log_mass[b, h, stays].double(), w.log(), rtol=1e-3, atol=1e-4)
        shares = kept * w / (kept * w).sum(1, keepdim=True)
        score = given.slots.score[b, h, stays]
        free = score.argsort(descending=True, stable=True).argsort() >= int(untouched * len(stays))
        fixed = shares[:, ~free] @ value[stays][~free]
        strength = ridge * float((shares[:, free] * heard).square().sum()) / int(free.sum())
        target = (attention @ value - fixed) * heard
        expected = value[stays].clone()
        expected[free] = solved(shares[:, free] * heard, target, value[stays][free], strength)
        torch.testing.assert_close(after.values[b, h, stays].double(), expected, rtol=1e-3, atol=1e-4)


def test_gradient_steps_bring_the_mass_nearer_within_the_box() -> None:
    given, errors = view(), []
    for steps in (0, 2, 50):
        settle = MatchAttention(ASKED, bias=True, values=False, ridge=0.1, box=0.5, steps=steps)
        plan = settle.settle(given, LowestScore(1, 2))
        assert plan.log_mass is not None
        assert float(plan.log_mass.abs().max()) <= 0.5 + 1e-5
        error = 0.0
        for b, h in product(range(BATCH), range(HEADS)):
            attention, weight = rows_of(given, b, h, 0)
            mass = attention @ (plan.log_mass[b, h].double().exp() * plan.keep[b, h])
            error += float((weight * (mass - 1).square()).sum())
        errors.append(error)
    assert errors[0] > errors[1] > errors[2]


def test_pursuit_takes_what_reduces_the_missing_mass_most() -> None:
    """One slot a lot: against a plain loop that solves anew after each."""
    given = view()
    victims = Pursuit(sinks=1, recent=2, lots=SLOTS, references=ASKED).victims(given, given.excess(), given.most_excess)
    keep = victims.keep(given.slots.valid)
    for b, h in product(range(BATCH), range(HEADS)):
        attention, weight = rows_of(given, b, h, 0)
        rows, heard = attention * weight.sqrt()[:, None], weight.sqrt()[:, None]
        taken = [slot for slot in (0, SLOTS - 2, SLOTS - 1) if given.slots.valid[b, h, slot]]
        while len(taken) < 8:
            strength = 1e-4 * float(rows[:, taken].square().sum()) / len(taken)
            w = solved(rows[:, taken], heard, torch.zeros(len(taken), 1, dtype=torch.float64), strength).clamp_min(0)
            gain = (rows.T @ (heard - rows[:, taken] @ w))[:, 0]
            gain[taken] = -torch.inf
            gain[~given.slots.valid[b, h]] = -torch.inf
            taken.append(int(gain.argmax()))
        assert sorted(taken) == keep[b, h].nonzero()[:, 0].tolist()


def test_a_bias_on_what_stays_reaches_attention() -> None:
    """The executor writes log mass of slots that stay, and only of these."""
    given = view()
    keep = given.slots.valid.clone()
    keep[..., 5] = False
    log_mass = torch.full_like(given.slots.log_mass, 0.7)
    after = apply_plan.apply(given.slots.map(torch.clone), Plan(keep, log_mass=log_mass))
    assert (after.log_mass[keep] == 0.7).all()
    assert (after.log_mass[~keep] == 0).all()


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt-oss", "bloom"])
def test_in_a_model_the_queries_are_those_of_the_second_pass(family: str) -> None:
    """As many as asked for, of every layer and of rows apart; bytes hold a log mass only where one is fitted."""
    model = LoadedModel(prepare(tiny_model(family)), None, "tiny")
    ids = torch.randint(3, 97, (2, 40), generator=torch.Generator().manual_seed(1))
    found: list[References] = []

    class Look(MatchAttention):
        def settle(self, view: View, select: object) -> Plan:
            assert view.references is not None
            found.append(view.references)
            return super().settle(view, select)

    cache = make_cache(model, "attention-matching", 0.3, queries=10)
    settle = cache.settings.pipeline.settle
    cache.settings.pipeline = replace(cache.settings.pipeline, settle=Look(10, second_pass=settle.second_pass))
    with torch.inference_mode():
        logits = model.model(ids, past_key_values=cache).logits
        logits = model.model(ids[:, :1], past_key_values=cache).logits
    assert torch.isfinite(logits).all()
    assert len(found) == len(cache.compressed_layers())
    assert all(8 <= asked.query.shape[2] <= 10 for asked in found)
    assert all(layer.references is None for layer in cache.compressed_layers())
