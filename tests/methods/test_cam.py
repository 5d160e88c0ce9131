"""CaM against merging values one leaving token at a time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvlab.core.contract.numerics import uniform_draws
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.core.methods.merging.cam import share_reaching, spread_forward
from tests.cache.layers import DIM
from tests.methods.merging import Layer, prompt

TOKENS, BUDGET, SINKS = 50, 16, 3


class TokenByToken:
    """One head: values merged by the formulas, the oldest unprotected token first."""

    def __init__(self, variant: str, reach: int, draws: Tensor | None) -> None:
        self.variant, self.reach, self.draws = variant, reach, draws
        self.at: list[int] = []
        self.value: dict[int, Tensor] = {}
        self.rows: list[dict[int, float]] = []  # what each query so far gave each token
        self.held: dict[int, set[int]] = {}
        self.dropped = 0

    def add(self, position: int, value: Tensor) -> None:
        self.at.append(position)
        self.value[position] = value.clone()
        self.held[position] = {position}

    def shrink(self, budget: int) -> None:
        """Let the oldest go until the budget holds; chances are those of before any left."""
        leaving = [p for p in self.at if p >= SINKS][: max(0, len(self.at) - budget)]
        staying = [p for p in self.at if p not in leaving]
        chance = {p: self._chance(p, staying) for p in leaving}
        # How much of what each slot held at first is in a slot now.
        inside = {p: {p: 1.0} for p in self.at}
        for position in leaving:
            after = [p for p in self.at if p > position][: self.reach]
            weight = chance[position] if self.draws is None else float(self.draws[position] < chance[position])
            for other in after:
                self.value[other] = self.value[other] + weight / len(after) * self.value[position]
                for origin, amount in inside[position].items():
                    inside[other][origin] = inside[other].get(origin, 0.0) + weight * amount
            self.at.remove(position)
        for position in leaving:
            heir = min(p for p in staying if p > position)
            if inside[heir].get(position, 0.0) > 0:
                self.held[heir] |= self.held[position]
            else:
                self.dropped += len(self.held[position])

    def _chance(self, position: int, staying: list[int]) -> float:
        def total(token: int, rows: list[dict[int, float]]) -> float:
            return sum(row.get(token, 0.0) for row in rows)

        before, newest = self.rows[:-1], self.at[-1]
        others = [p for p in staying if p != newest]
        if self.variant == "code":
            after = [p for p in self.at if p > position][: self.reach]
            ratio = total(position, self.rows) / (sum(total(p, self.rows) for p in after) / len(after))
        elif self.variant == "simulation":  # a column's mean over all rows before the newest, whoever could see it
            mean = {p: total(p, before) / len(before) for p in [position, *others]}
            ratio = mean[position] / max(mean.values())
        elif self.variant == "row":
            window = [p for p in staying if p > position]
            ratio = self.rows[-1][position] / (sum(self.rows[-1][p] for p in window) / len(window))
        else:
            rivals = [position, *others]
            return float(total(position, before) > sum(total(p, before) for p in rivals) / len(rivals))
        return min(max(ratio, 0.0), 1.0)


@pytest.mark.parametrize("variant", ["code", "simulation", "row", "threshold"])
@pytest.mark.parametrize("draw", ["bernoulli", "expected"])
@pytest.mark.parametrize(("tokens", "merge", "every"), [(TOKENS, 4, 1), (150, 16, 1), (10, 5, 1), (TOKENS, 30, 3)])
def test_equals_merging_one_token_at_a_time(variant: str, draw: str, tokens: int, merge: int, every: int) -> None:
    """The prompt (values pass through many leaving slots) and decoding, values, votes and what was dropped."""
    options = {"variant": variant, "draw": draw, "sinks": SINKS, "merge": merge}
    layer = Layer(make_method("cam", **options), BUDGET, every=every)
    query, key, value = prompt(9, tokens, heads=2)
    layer.feed(query, key, value)
    limit = BUDGET - (every - 1)
    reach = limit - 1 if variant == "simulation" else merge
    assert layer.layer.generator is not None
    everywhere = torch.arange(tokens + 6).expand(1, 2, -1)
    draws = uniform_draws(layer.layer.generator.initial_seed(), everywhere)[0]
    keys = key
    heads = [TokenByToken(variant, reach, None if draw == "expected" else draws[head]) for head in range(2)]
    for head, one in enumerate(heads):
        for position in range(tokens):
            one.add(position, value[0, head, position])
            mass = torch.softmax(key[0, head, : position + 1] @ query[0, head, position] * DIM**-0.5, 0)
            one.rows.append(dict(enumerate(mass.tolist())))
        one.shrink(limit)
    same(layer, heads)
    for step in range(6):
        query, key, value = prompt(500 + step, 1, heads=2)
        layer.feed(query, key, value)
        keys = torch.cat([keys, key], 2)
        for head, one in enumerate(heads):
            one.add(tokens + step, value[0, head, 0])
            mass = torch.softmax(keys[0, head, one.at] @ query[0, head, 0] * DIM**-0.5, 0)
            one.rows.append(dict(zip(one.at, mass.tolist(), strict=True)))
            if (step + 1) % every == 0:
                one.shrink(limit)
        same(layer, heads)
    layer.check_votes(tokens + 6)


@pytest.mark.parametrize("text", [20, 95, 96])
def test_the_simulation_has_the_authors_probabilities(text: int) -> None:
    """Their rule, line by line: of the first t rows the mean of each column over all t, start and window as rivals.

    t is the first token for which something leaves, when every row has seen every token before it.
    """
    share = math.ceil(0.1 * text)  # of the text, for start and recent tokens each
    t = 2 * share
    layer = Layer(make_method("cam", preset="simulation", draw="expected"), t)
    query, key, value = prompt(7, t + 1, heads=4)
    layer.feed(query[:, :, :t], key[:, :, :t], value[:, :, :t])
    layer.feed(query[:, :, t:], key[:, :, t:], value[:, :, t:])
    _, plan, _, _ = layer.notes.decisions[-1]
    assert plan.edges is not None
    for head in range(4):
        column = [0.0] * t
        for row in range(t):
            mass = torch.softmax(key[0, head, : row + 1] @ query[0, head, row] * DIM**-0.5, 0)
            for j in range(row + 1):
                column[j] += float(mass[j]) / t
        leaves = t - share
        rivals = [*column[:share], *column[leaves:t]]
        expected = min(max(column[leaves] / max(rivals), 0.0), 1.0)
        assert sorted(layer.table(head)) == [*range(share), *range(leaves + 1, t + 1)]
        assert float(plan.edges.value_weight[0, head, 0]) * share == pytest.approx(expected, rel=1e-4)


def test_start_tokens_may_be_a_share_of_the_budget_rounded_up() -> None:
    for budget, start in ((7, 4), (10, 5), (20, 10)):
        layer = Layer(make_method("cam", sinks=0.5), budget)
        layer.feed(*prompt(1, TOKENS))
        assert sorted(layer.table()) == [*range(start), *range(TOKENS - budget + start, TOKENS)]
    with pytest.raises(UserError, match="must be an integer"):
        make_method("cam", sinks=1.5)


def same(layer: Layer, heads: list[TokenByToken]) -> None:
    assert layer.layer.evicted_votes is not None
    for head, one in enumerate(heads):
        table = layer.table(head)
        assert sorted(table) == one.at
        for position in one.at:
            torch.testing.assert_close(table[position]["value"], one.value[position], rtol=1e-3, atol=1e-4)
            assert float(table[position]["votes"]) == len(one.held[position])
            assert table[position]["log_mass"] == 0
        assert float(layer.layer.evicted_votes[0, head]) == one.dropped


def test_keys_are_never_touched() -> None:
    layer = Layer(make_method("cam", draw="expected"), BUDGET)
    query, key, value = prompt(1, TOKENS)
    layer.feed(query, key, value)
    for position, slot in layer.table().items():
        assert torch.equal(slot["key"], key[0, 0, position])
    assert any(not torch.equal(slot["value"], value[0, 0, p]) for p, slot in layer.table().items())


def test_each_leaving_slot_has_one_edge() -> None:
    layer = Layer(make_method("cam"), BUDGET)
    layer.feed(*prompt(1, TOKENS))
    for step in range(5):
        layer.feed(*prompt(step, 1))
    for _, plan, before, _ in layer.notes.decisions:
        assert plan.edges is not None
        for head in range(2):
            active = plan.edges.active[0, head]
            source, target = plan.edges.source[0, head][active], plan.edges.target[0, head][active]
            assert len(source.unique()) == len(source)
            assert not plan.keep[0, head, source].any()
            assert plan.keep[0, head, target].all()
            assert before.valid[0, head, source].all()
            assert plan.edges.key_weight is None
            assert (plan.edges.value_weight[0, head][active] > 0).all()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), reach=st.integers(1, 90), width=st.integers(1, 200))
def test_blocks_solve_the_recurrence(seed: int, reach: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(1, 1, width, 2, generator=generator, dtype=torch.float64)
    ends = torch.rand(1, 1, width, generator=generator) < 0.3
    weight = torch.rand(1, 1, width, generator=generator, dtype=torch.float64).masked_fill(ends, 0) / reach
    longest = min(reach, width)
    solved = spread_forward(values, weight, torch.full((1, 1), longest), longest)[0, 0]
    slow = values[0, 0].clone()
    for j in range(width):
        for i in range(max(0, j - reach), j):
            slow[j] += weight[0, 0, i] * slow[i]
    torch.testing.assert_close(solved, slow)
    # Linearity: what reaches the next end is how that end changes with the slot's own value.
    share = share_reaching(weight, ends, torch.full((1, 1), longest), longest)[0, 0]
    goals = ends[0, 0].nonzero()[:, 0].tolist()
    for i in range(0, width, 7):
        goal = next((g for g in goals if g > i), None)
        if goal is not None and not ends[0, 0, i]:
            unit = torch.zeros(1, 1, width, 1, dtype=torch.float64)
            unit[0, 0, i] = 1
            reached = spread_forward(unit, weight, torch.full((1, 1), longest), longest)[0, 0, goal, 0]
            torch.testing.assert_close(share[i], reached)


def test_draws_are_uniform_and_belong_to_the_token() -> None:
    position = torch.arange(20_000).expand(2, 3, -1)
    draws = uniform_draws(123, position)
    assert torch.equal(draws[0], draws[1]), "another batch row draws the same"
    assert not torch.equal(draws[0, 0], draws[0, 1]), "another head does not"
    assert not torch.equal(draws, uniform_draws(124, position))
    assert abs(draws.mean() - 0.5) < 0.01
    counts = torch.histc(draws[0, 1], 20, 0, 1)
    assert (counts > 800).all() and (counts < 1200).all()
    pairs = torch.corrcoef(torch.stack([draws[0, 0, :-1], draws[0, 0, 1:], draws[0, 1, :-1]]))
    assert (pairs - torch.eye(3)).abs().max() < 0.03


def test_the_expectation_is_the_mean_over_seeds() -> None:
    """For a single leaving token, the mean over seeds of the drawn values tends to the expected form."""

    def values(draw: str, seed: int) -> Tensor:
        layer = Layer(make_method("cam", variant="simulation", draw=draw), BUDGET)
        layer.layer.settings.seed = seed
        layer.feed(*prompt(4, BUDGET))
        layer.feed(*prompt(5, 1))
        return layer.slots.values.masked_fill(~layer.slots.valid[..., None], 0)

    drawn = torch.stack([values("bernoulli", seed) for seed in range(400)])
    assert drawn.std(0).max() > 0
    torch.testing.assert_close(drawn.mean(0), values("expected", 0), rtol=0, atol=0.02)
