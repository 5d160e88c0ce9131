"""exactmerge and KeepKV count a learned sink in what they divide by: formulas in plain loops, in double precision."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kvlab.core.attention.pass_view import PassView
from kvlab.core.contract.view import Slots, View
from kvlab.core.methods.merging.exactmerge import ExactResidual, _eviction_error
from kvlab.core.methods.merging.keepkv import fit_to_group
from kvlab.core.methods.scorers.ema import EMA, SEEN_ROWS, EmaScore
from kvlab.core.methods.settlers.log_mass import Mass, Parts
from kvlab.core.methods.settlers.observed_queries import Observed
from tests.cache.layers import DIM, draw
from tests.methods.test_exactmerge import WINDOW, compressed

HEADS, GROUP, SLOTS, ROWS = 2, 2, 9, 4
SCALE = DIM**-0.5
SINKS = torch.tensor([[[2.0, -1.0], [0.5, 3.0]]])  # (1, H, G)


@pytest.fixture
def view() -> View:
    """The last four queries of a pass over nine slots, some with a log mass."""
    keys, values = draw(1, 1, HEADS, SLOTS, DIM), draw(2, 1, HEADS, SLOTS, DIM)
    log_mass = draw(3, 1, HEADS, SLOTS).abs().masked_fill(draw(4, 1, HEADS, SLOTS) < 0, 0.0)
    shape = 1, HEADS, SLOTS
    slots = Slots(
        keys, values, torch.arange(SLOTS).expand(shape), torch.ones(shape), log_mass, torch.zeros(shape),
        torch.ones(shape, dtype=torch.bool), {EMA: torch.full(shape, -math.inf), SEEN_ROWS: torch.zeros(shape)},
    )  # fmt: skip
    layer_pass = PassView(draw(5, 1, HEADS * GROUP, ROWS, DIM), keys, log_mass[:, :, None], None, SCALE, sinks=SINKS)
    return View(
        slots,
        layer_pass,
        torch.full((1, HEADS), 5),
        torch.tensor([SLOTS]),
        "prefill",
        4,
        5,
        started=False,
        layer_idx=0,
        num_layers=1,
    )


def attention(view: View, head: int, member: int, row: int) -> list[float]:
    """What one query gives each slot it may look at: the softmax over the slots and the sink."""
    query = view.layer_pass.query[0, head * GROUP + member, row].double()
    logits = [
        float(query @ view.slots.keys[0, head, slot].double()) * SCALE + float(view.slots.log_mass[0, head, slot])
        for slot in range(SLOTS - ROWS + row + 1)
    ]
    total = sum(math.exp(logit) for logit in logits) + math.exp(float(SINKS[0, head, member]))
    return [math.exp(logit) / total for logit in logits] + [0.0] * (ROWS - 1 - row)


def members() -> list[tuple[int, int]]:
    return [(head, member) for head in range(HEADS) for member in range(GROUP)]


def test_keepkvs_average_is_of_what_slots_really_get(view: View) -> None:
    """Equation 8 over the window: the mean over the group, the correction for the queries that could look."""
    score = EmaScore(alpha=0.9, window=ROWS)
    given = score.update(view.slots, view.layer_pass, first=True)["score"].double()
    for head in range(HEADS):
        for slot in range(SLOTS):
            total, looked = 0.0, 0
            for row in range(ROWS):
                shares = [attention(view, head, member, row)[slot] for member in range(GROUP)]
                total += 0.1 * 0.9 ** (ROWS - 1 - row) * sum(shares) / GROUP
                looked += slot <= SLOTS - ROWS + row
            expected = math.log(total / (1 - 0.9**looked))
            assert float(given[0, head, slot]) == pytest.approx(expected, abs=1e-4)


def test_what_exactmerge_observes_is_what_the_queries_got(view: View) -> None:
    observed = Observed.last_queries(view, ROWS)
    for head, member in members():
        for row in range(ROWS):
            mass = attention(view, head, member, row)
            place = member * ROWS + row
            assert observed.mass[0, head, place].tolist() == pytest.approx(mass, abs=1e-5)
            assert float(observed.beside[0, head, place]) == pytest.approx(1 - sum(mass), abs=1e-5)
            output = sum(share * view.slots.values[0, head, slot].double() for slot, share in enumerate(mass))
            torch.testing.assert_close(observed.output[0, head, place].double(), output, rtol=1e-4, atol=1e-5)


def test_the_error_of_evicting_is_that_of_an_attention_beside_the_sink(view: View) -> None:
    keep = torch.ones(1, HEADS, SLOTS, dtype=torch.bool)
    keep[:, :, 1:3] = False
    given = _eviction_error(Observed.last_queries(view, ROWS), keep, view.slots.values)
    for head in range(HEADS):
        gap = size = 0.0
        for member in range(GROUP):
            for row in range(ROWS):
                mass = attention(view, head, member, row)
                values = [view.slots.values[0, head, slot].double() for slot in range(SLOTS)]
                true = sum(share * value for share, value in zip(mass, values, strict=True))
                left = 1 - mass[1] - mass[2]  # the others and the sink share what those two had
                kept = sum(mass[slot] / left * values[slot] for slot in range(SLOTS) if keep[0, head, slot])
                gap += float((true - kept).square().sum())
                size += float(true.square().sum())
        assert float(given[0, head]) == pytest.approx(math.sqrt(gap / size), rel=1e-4)


def merge(view: View) -> tuple[Tensor, Tensor, Tensor]:
    """Slot 1 joins slot 4, slot 2 joins slot 0."""
    source, target = torch.tensor([1, 2]), torch.tensor([4, 0])
    return source.expand(1, HEADS, 2), target.expand(1, HEADS, 2), torch.ones(1, HEADS, 2, dtype=torch.bool)


def test_the_fit_to_a_group_weighs_each_head_by_what_it_really_gives(view: View) -> None:
    """With a the attention to a part, m that to both, h that to the mean key without log mass (docs/grouped-queries):
    a share is sum m a / sum m^2, the slot's mass sum m h / sum h^2, over all queries, older ones counting less.
    """
    source, target, active = merge(view)
    fit = fit_to_group(view, source, target, active, None, ROWS, 0.9)
    for head in range(HEADS):
        for edge in range(2):
            first, second = int(source[0, head, edge]), int(target[0, head, edge])
            asked = [(member, row) for member in range(GROUP) for row in range(ROWS)]
            both = {place: [attention(view, head, *place)[slot] for slot in (first, second)] for place in asked}
            weight = {place: 0.9 ** (ROWS - 1 - place[1]) for place in asked}
            total = sum(weight[place] * sum(both[place]) ** 2 for place in asked)
            share, own = (
                sum(weight[place] * sum(both[place]) * both[place][part] for place in asked) / total for part in (0, 1)
            )
            assert float(fit.share[0, head, edge]) == pytest.approx(share, rel=1e-4)
            assert float(fit.own[0, head, edge]) == pytest.approx(own, rel=1e-4)
            key = share * view.slots.keys[0, head, first].double() + own * view.slots.keys[0, head, second].double()
            bare = {place: bare_mass(view, head, *place, key) for place in asked}
            mass = sum(weight[place] * sum(both[place]) * bare[place] for place in asked)
            mass /= sum(weight[place] * bare[place] ** 2 for place in asked)
            assert float(fit.log_mass[0, head, edge]) == pytest.approx(math.log(mass), abs=1e-4)


def bare_mass(view: View, head: int, member: int, row: int, key: Tensor) -> float:
    """exp logit of another key, over what this query's attention is divided by now."""
    query = view.layer_pass.query[0, head * GROUP + member, row].double()
    first = float(query @ view.slots.keys[0, head, 0].double()) * SCALE + float(view.slots.log_mass[0, head, 0])
    total = math.exp(first) / attention(view, head, member, row)[0]
    return math.exp(float(query @ key) * SCALE) / total


def test_the_exact_log_mass_keeps_what_the_group_gave(view: View) -> None:
    source, target, active = merge(view)
    half = torch.full((1, HEADS, 2), 0.5)
    given = Mass("exact").after(view, Parts(source, target, active, half, half), half)
    for head in range(HEADS):
        for edge in range(2):
            first, second = int(source[0, head, edge]), int(target[0, head, edge])
            key = (view.slots.keys[0, head, first].double() + view.slots.keys[0, head, second].double()) / 2
            mass = [attention(view, head, member, ROWS - 1) for member in range(GROUP)]
            before = sum(shares[first] + shares[second] for shares in mass)
            after = sum(bare_mass(view, head, member, ROWS - 1, key) for member in range(GROUP))
            assert float(given[0, head, edge]) == pytest.approx(math.log(before / after), abs=1e-4)


@pytest.mark.parametrize("shares", [(0.0,), (0.4,)])
def test_the_trial_is_what_the_table_gives_beside_a_sink(shares: tuple[float, ...]) -> None:
    hand, view = compressed(shares=shares, refit=False, sinks=torch.tensor([3.0, 0.0, 1.0, 4.0]))
    settle, select = hand.layer.settings.pipeline.settle, hand.layer.settings.pipeline.select
    assert isinstance(settle, ExactResidual)
    observed = Observed.last_queries(view, WINDOW)
    grouping, keep = settle._group(view, select, (view.budget * shares[0]).round().long().minimum(view.budget - 1))
    trial, _ = grouping.trial(observed, keep, view.slots.values, observed.mass.sum(2) + 1e-9)
    last = torch.arange(observed.mass.shape[2]) % WINDOW == WINDOW - 1
    executed = hand.ask(view.layer_pass.query[:, :, -1:])[:, :, 0].unflatten(1, (2, -1)).float()
    torch.testing.assert_close(executed, trial.output[:, :, last], rtol=1e-3, atol=1e-4)
