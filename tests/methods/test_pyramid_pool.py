"""PyramidPool against pooling written slot by slot, and its layer budgets."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvlab.core.contract.numerics import proportional
from kvlab.core.methods import make_method
from kvlab.core.methods.merging.pyramid_pool import Linear, join_pairs
from tests.cache.layers import DIM, draw
from tests.methods.merging import Layer, column_mass, prompt

POOLINGS = ["mean", "max", "max-norm", "best"]
Slot = dict[str, Any]


@given(
    average=st.integers(1, 400),
    tokens=st.integers(1, 600),
    layers=st.integers(1, 40),
    beta=st.floats(1, 50),
    printed=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_layer_budgets_add_up_exactly(average: int, tokens: int, layers: int, beta: float, printed: bool) -> None:
    budgets = Linear(beta, printed).layer_budgets(average, tokens, layers)
    assert sum(budgets) == average * layers
    assert min(budgets) >= 1
    assert max(budgets) <= max(tokens, average)
    assert budgets == sorted(budgets, reverse=True)


def test_layer_budgets_are_the_papers_line() -> None:
    """32 layers, beta 4: the corrected slope ends at L_0 / beta, the printed one does not get there."""
    fixed = Linear(4).layer_budgets(2560, 10_000, 32)
    assert (fixed[0], fixed[-1], sum(fixed)) == (4096, 1024, 81_920)
    printed = Linear(4, printed=True).layer_budgets(2608, 10_000, 32)
    assert (printed[0], printed[-1], sum(printed)) == (4096, 1120, 83_456)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.data())
@settings(max_examples=150, deadline=None)
def test_shares_become_whole_slots_that_add_up(shares: list[float], data: st.DataObject) -> None:
    most = data.draw(st.integers(1, 50))
    total = data.draw(st.integers(len(shares), len(shares) * most))
    whole = proportional(shares, total, 1, most)
    assert sum(whole) == total
    assert all(1 <= slots <= most for slots in whole)
    for (more, slots), (less, others) in product(zip(shares, whole, strict=True), repeat=2):
        assert more <= less or slots >= others - 1, "rounding may cost one slot, no more"


def joined(members: list[Slot], pooling: str, weighted: bool) -> Slot:
    """One slot from a window, as the pooling says."""
    passes = max(s["generation"] for s in members) + 1
    votes = sum(s["votes"] for s in members)
    common = {"votes": votes, "generation": passes}
    if pooling in ("best", "max-norm"):
        by = {"best": lambda s: float(s["score"]), "max-norm": lambda s: float(s["key"].norm())}[pooling]
        return max(members, key=by) | common
    stood = [position for s in members for position in s["stood"]]
    slot = common | {"position": stood[(len(stood) - 1) // 2], "score": 0.0, "stood": stood}
    for name in ("key", "value"):
        states = torch.stack([s[name] for s in members])
        if pooling == "max":
            slot[name] = states.amax(0)
        else:
            weight = torch.tensor([float(s["votes"]) if weighted else 1.0 for s in members])
            slot[name] = (states * (weight / weight.sum())[:, None]).sum(0)
    return slot


@dataclass
class Pooling:
    """A head of PyramidPool, slot by slot."""

    budget: int
    window: int
    sinks: int
    recent: int
    pooling: str
    weighted: bool
    repool: str

    def prompt(self, slots: list[Slot]) -> list[Slot]:
        """Oldest windows first, pass after pass, until few enough are left."""
        for slot in slots:
            slot["stood"] = [slot["position"]] * slot["votes"]  # where each of its tokens stood before this
        spare = self.window if self.repool == "literal" else 0
        return self._windows(slots, spare) if len(slots) > self.budget else slots

    def step(self, slots: list[Slot], tokens: int) -> list[Slot]:
        """The same again, or neighbours whose tokens are fewest for their age, one pair at a time."""
        if self.repool == "literal" or len(slots) <= self.budget:
            return self.prompt(slots)
        for slot in slots:
            slot["stood"] = [slot["position"]] * slot["votes"]
        while len(slots) > self.budget:
            places = range(self.sinks, len(slots) - self.recent - 1)

            def cost(place: int, slots: list[Slot] = slots) -> float:
                return (slots[place]["votes"] + slots[place + 1]["votes"]) / (tokens - slots[place + 1]["position"])

            first = min(places, key=cost)
            slots = [*slots[:first], joined(slots[first : first + 2], self.pooling, self.weighted), *slots[first + 2 :]]
        return slots

    def _windows(self, slots: list[Slot], spare: int) -> list[Slot]:
        cut = len(slots) - self.recent
        head, middle, tail = slots[: self.sinks], slots[self.sinks : cut], slots[cut:]
        places = self.budget - self.sinks - self.recent
        need = len(middle) - min(max(places - spare, 1), places)
        while need > 0:
            pooled: list[Slot] = []
            size = self.window if len(middle) >= self.window else min(need + 1, len(middle))
            while need > 0 and len(middle) >= size:
                pooled.append(joined(middle[:size], self.pooling, self.weighted))
                middle, need = middle[size:], need - (size - 1)
            middle = pooled + middle
        return head + middle + tail


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("variant", ["fixed", "paper"])
@pytest.mark.parametrize("repool", ["graded", "literal"])
@pytest.mark.parametrize(("budget", "window", "tokens"), [(14, 4, 40), (12, 3, 100), (9, 2, 9), (20, 8, 33)])
def test_equals_pooling_slot_by_slot(
    pooling: str, variant: str, repool: str, budget: int, window: int, tokens: int
) -> None:
    """At the prompt and at every decode step: keys, values, tokens, positions and generations."""
    sinks, steps, share = 2, 6, 0.25
    options = {"pooling": pooling, "variant": variant, "window": window, "sinks": sinks, "repool": repool}
    layer = Layer(make_method("pyramid-pool", recent=share, **options), budget)
    query, key, value = prompt(5, tokens, heads=1)
    layer.feed(query, key, value)
    score = column_mass(query, key)[0]
    recent = max(1, int((budget - 1) * share))

    def fresh(place: int, key: Tensor, value: Tensor, score: float = 0.0) -> Slot:
        return {"position": place, "key": key, "value": value, "votes": 1, "generation": 0, "score": score}

    slowly = Pooling(budget, window, sinks, recent, pooling, variant == "fixed", repool)
    table = slowly.prompt([fresh(i, key[0, 0, i], value[0, 0, i], float(score[i])) for i in range(tokens)])
    for step in range(steps):
        same_table(layer, table, pooling)
        query, key, value = prompt(1000 + step, 1, heads=1)
        layer.feed(query, key, value)
        table.append(fresh(tokens + step, key[0, 0, 0], value[0, 0, 0]))
        if pooling == "best":  # attention of the new query over the slots as they were before this step's pooling
            logits = torch.stack([s["key"] for s in table]) @ query[0, 0, 0] * DIM**-0.5
            for slot, mass in zip(table, torch.softmax(logits, 0).tolist(), strict=True):
                slot["score"] = float(slot["score"]) + mass
        table = slowly.step(table, tokens + step + 1)
        assert (layer.slots.live() <= budget).all()
    layer.check_votes(tokens + steps)


def same_table(layer: Layer, table: list[Slot], pooling: str) -> None:
    given = [slot for _, slot in sorted(layer.table().items())]
    assert len(given) == len(table)
    for ours, theirs in zip(given, table, strict=True):
        torch.testing.assert_close(ours["key"], theirs["key"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours["value"], theirs["value"], rtol=1e-4, atol=1e-5)
        assert int(ours["position"]) == theirs["position"]
        assert float(ours["generation"]) == theirs["generation"]
        assert float(ours["votes" if pooling in ("mean", "max") else "covers"]) == theirs["votes"]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    budget=st.integers(1, 25),
    tokens=st.integers(1, 60),
    window=st.integers(2, 9),
    pooling=st.sampled_from(POOLINGS),
    repool=st.sampled_from(["graded", "literal"]),
    recent=st.sampled_from([0.25, 0.5]),
    every=st.integers(1, 6),
)
def test_the_budget_holds_after_every_step(
    seed: int, budget: int, tokens: int, window: int, pooling: str, repool: str, recent: float, every: int
) -> None:
    method = make_method("pyramid-pool", pooling=pooling, window=window, repool=repool, recent=recent)
    layer = Layer(method, budget, every=every)
    layer.feed(*prompt(seed, tokens, 2, 2, 2))
    # A budget smaller than the slack still needs a slot for each token that waits.
    most = max(budget, every)
    assert (layer.slots.live() <= most).all()
    for step in range(12):
        layer.feed(*prompt(seed + step, 1, 2, 2, 2))
        assert (layer.slots.live() <= most).all()
        layer.check_votes(tokens + step + 1)
        if pooling in ("mean", "max") and budget > every + 1:
            assert (layer.layer.evicted_votes == 0).all(), "pooling lets nothing go"


def sizes(layer: Layer, pooling: str) -> Tensor:
    """Tokens each slot of the first head stands for, oldest first."""
    name = "votes" if pooling in ("mean", "max") else "covers"
    return torch.stack([slot[name] for _, slot in sorted(layer.table().items())])


YOUNGER = 2.0  # times the tokens of any older slot: the most that a slot of a graded cache stands for


@pytest.mark.parametrize(("pooling", "budget", "share"), [("mean", 56, 0.2), ("best", 140, 0.06)])
def test_pools_stay_graded_while_decoding(pooling: str, budget: int, share: float) -> None:
    """700 tokens, as in the last layer and the average one of `mini` at 20 %: after 64, 256 and 1,024 more tokens."""
    sinks, tokens = 4, 700
    layer = Layer(make_method("pyramid-pool", pooling=pooling, sinks=sinks), budget)
    layer.feed(*prompt(0, tokens, heads=1))
    at_first = int((sizes(layer, pooling) > 1).sum())
    for step in range(1, 1025):
        layer.feed(*prompt(1000 + step, 1, heads=1))
        if step in (64, 256, 1024):
            size = sizes(layer, pooling)
            assert size.sum() == tokens + step, "every token belongs to a slot"
            assert (size > 1).sum() >= at_first, "as many pools as after the prompt"
            assert size.max() <= share * (tokens + step), "no slot stands for most of the text"
            youngest = size[sinks:].flip(0).cummax(0).values.flip(0)
            assert (youngest[1:] <= YOUNGER * size[sinks:-1]).all(), "older text is coarser"


def test_literal_pooling_ends_in_two_pools() -> None:
    """What the paper's rule comes to: the reason why it is not the default."""
    layer = Layer(make_method("pyramid-pool", pooling="mean", repool="literal"), 56)
    layer.feed(*prompt(0, 700, heads=1))
    for step in range(64):
        layer.feed(*prompt(1000 + step, 1, heads=1))
    size = sizes(layer, "mean")
    assert (size > 1).sum() == 2
    assert size.max() > 600


def pairs_slowly(size: list[float], age: list[float], need: int) -> list[list[int]]:
    """Neighbours joined one pair at a time, the fewest tokens for their age first."""
    groups = [[rank] for rank in range(len(size))]
    for _ in range(need):
        costs = [sum(size[rank] for rank in left + right) / age[right[-1]] for left, right in pairwise(groups)]
        first = costs.index(min(costs))
        groups[first : first + 2] = [groups[first] + groups[first + 1]]
    return groups


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_pairs_joined_at_once(data: st.DataObject) -> None:
    """One join is the cheapest of all; several leave as few groups as asked for, of neighbours only."""
    there = data.draw(st.integers(1, 12))
    spread = data.draw(st.lists(st.integers(1, 50), min_size=there, max_size=there))
    size = [float(number) for number in spread]
    age = [float(sum(spread[rank:])) for rank in range(there)]
    need = data.draw(st.integers(0, there - 1))
    room = [0.0] * data.draw(st.integers(0, 3))
    exists = torch.arange(there + len(room))[None, None] < there
    given = join_pairs(
        exists, torch.tensor([[size + room]]), torch.tensor([[age + room]]), torch.tensor([[need]]), max(need, 1)
    )
    group = given.group[0, 0, :there].tolist()
    assert len(set(group)) == there - need
    assert group == sorted(group)
    weight = given.plain_weight[0, 0, :there]
    for number in set(group):
        assert float(weight[[rank for rank in range(there) if group[rank] == number]].sum()) == pytest.approx(1.0)
    if need <= 1:
        expected = [number for number, ranks in enumerate(pairs_slowly(size, age, need)) for _ in ranks]
        assert group == expected


def test_literal_pooling_is_not_done_at_every_step() -> None:
    """After each pooling a window's worth of slots is free."""
    layer = Layer(make_method("pyramid-pool", window=5, repool="literal"), 30)
    layer.feed(*prompt(0, 60))
    lengths = [int(layer.slots.live().max())]
    for step in range(20):
        layer.feed(*prompt(step, 1))
        lengths.append(int(layer.slots.live().max()))
    assert max(lengths) <= 30
    falls = [i for i in range(1, len(lengths)) if lengths[i] < lengths[i - 1]]
    assert len(falls) <= 20 // 5 + 1
    assert all(lengths[i] <= 25 for i in falls)


def test_sinks_and_recent_tokens_stay_whole() -> None:
    layer = Layer(make_method("pyramid-pool", pooling="mean", sinks=3, recent=0.4), 16)
    query, key, value = prompt(0, 80)
    layer.feed(query, key, value)
    table = layer.table()
    for position in [0, 1, 2, *range(80 - 6, 80)]:
        assert table[position]["votes"] == 1
        assert torch.equal(table[position]["key"], key[0, 0, position])
    assert sum(float(slot["votes"]) for slot in table.values()) == 80


@pytest.mark.parametrize("options", [{"pooling": "max", "mass": "votes"}, {"pooling": "best", "space": "unrotated"}])
def test_only_means_have_mass_and_space(options: dict) -> None:
    with pytest.raises(ValueError, match="need pooling 'mean'"):
        make_method("pyramid-pool", **options)


def test_the_plain_and_the_counting_mean_differ() -> None:
    """Variants can be told apart once slots are pooled again."""
    tables = []
    for variant in ("fixed", "paper"):
        layer = Layer(make_method("pyramid-pool", variant=variant, pooling="mean"), 12)
        layer.feed(draw(0, 1, 2, 90, DIM), draw(1, 1, 2, 90, DIM), draw(2, 1, 2, 90, DIM))
        for step in range(9):
            layer.feed(*prompt(step, 1))
        tables.append(layer.table())
    assert any(not torch.allclose(tables[0][p]["value"], tables[1][p]["value"]) for p in tables[0])
