"""D2O against its formulas written token by token, and its layer budgets."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvlab.core.cache import make_cache
from kvlab.core.contract.view import Slots
from kvlab.core.methods import make_method
from kvlab.core.methods.merging.d2o import Variance
from kvlab.models.load import prepare
from tests.cache.layers import DIM
from tests.families import tiny_model
from tests.methods.merging import Layer, column_mass, prompt

TOKENS, BUDGET, SINKS, HEADS = 36, 14, 3, 2


class Reference:
    """All heads of one layer, one decision after another."""

    def __init__(self, variant: str, smoothing: float) -> None:
        self.variant, self.smoothing = variant, smoothing
        self.heads: list[dict[int, dict]] = [{} for _ in range(HEADS)]
        self.threshold: list[float | None] = [None] * HEADS
        self.dropped = [0] * HEADS

    def add(self, head: int, position: int, key: Tensor, value: Tensor) -> None:
        self.heads[head][position] = {"key": key.clone(), "value": value.clone(), "votes": 1, "score": 0.0}

    def attend(self, query: Tensor) -> None:
        for head, table in enumerate(self.heads):
            logits = torch.stack([slot["key"] for slot in table.values()]) @ query[0, head, 0] * DIM**-0.5
            for slot, mass in zip(table.values(), torch.softmax(logits, 0).tolist(), strict=True):
                slot["score"] += mass

    def shrink(self, seen: int) -> None:
        leaving = [self._leaving(head, seen) for head in range(HEADS)]
        near = [{p: self._nearest(head, p, leaving[head]) for p in leaving[head]} for head in range(HEADS)]
        for head, chosen in enumerate(self._passing(leaving, near)):
            self._merge(head, leaving[head], near[head], chosen)

    def _leaving(self, head: int, seen: int) -> list[int]:
        table, recent = self.heads[head], int(BUDGET * 0.5)
        free = [p for p in table if p >= SINKS and p < seen - recent]
        return sorted(sorted(free, key=lambda p: table[p]["score"])[: max(0, len(table) - BUDGET)])

    def _nearest(self, head: int, position: int, leaving: list[int]) -> tuple[float, int]:
        table = self.heads[head]
        key = table[position]["key"]

        def likeness(p: int) -> float:
            return float(torch.nn.functional.cosine_similarity(key, table[p]["key"], dim=0))

        return max((likeness(p), p) for p in table if p not in leaving)

    def _passing(self, leaving: list[list[int]], near: list[dict[int, tuple[float, int]]]) -> list[set[int]]:
        means = [[near[h][p][0] for p in leaving[h]] for h in range(HEADS)]
        if self.variant == "code":  # one threshold, and the j-th tokens of all heads judged together
            self._update(range(HEADS), [mean for head in means for mean in head])
            joint = [sum(row) / HEADS for row in zip(*means, strict=True)]
            return [{p for j, p in enumerate(leaving[h]) if joint[j] >= self.threshold[0] - 1e-6} for h in range(HEADS)]
        for head in range(HEADS):
            self._update([head], means[head])
        return [{p for p in leaving[h] if near[h][p][0] >= self.threshold[h] - 1e-6} for h in range(HEADS)]

    def _update(self, heads, likeness: list[float]) -> None:
        if likeness:
            mean, old = sum(likeness) / len(likeness), self.threshold[heads[0]]
            new = mean if old is None else (1 - self.smoothing) * old + self.smoothing * mean
            for head in heads:
                self.threshold[head] = new

    def _merge(self, head: int, leaving: list[int], near: dict[int, tuple[float, int]], chosen: set[int]) -> None:
        table = self.heads[head]
        for target in {near[p][1] for p in chosen}:
            sources = [p for p in leaving if p in chosen and near[p][1] == target]
            for name in ("key", "value"):
                if self.variant == "code":
                    total = table[target][name] + sum(near[p][0] * table[p][name] for p in sources)
                    table[target][f"new {name}"] = total / (1 + len(sources))
                else:
                    weight = {p: math.exp(near[p][0]) for p in sources}
                    total = math.e * table[target][name] + sum(weight[p] * table[p][name] for p in sources)
                    table[target][f"new {name}"] = total / (math.e + sum(weight.values()))
            table[target]["votes"] += sum(table[p]["votes"] for p in sources)
        for p in leaving:
            votes = table.pop(p)["votes"]
            self.dropped[head] += 0 if p in chosen else votes
        for slot in table.values():
            for name in ("key", "value"):
                slot[name] = slot.pop(f"new {name}", slot[name])


@pytest.mark.parametrize("variant", ["paper", "code"])
@pytest.mark.parametrize("smoothing", [0.5, 0.2])
def test_equals_the_formulas_token_by_token(variant: str, smoothing: float) -> None:
    """The prompt is brought down to the budget at once, then one token a step."""
    layer = Layer(make_method("d2o", variant=variant, smoothing=smoothing, sinks=SINKS), BUDGET)
    query, key, value = prompt(11, TOKENS, HEADS)
    layer.feed(query, key, value)
    assert (layer.slots.live() == BUDGET).all()
    reference, mass = Reference(variant, smoothing), column_mass(query, key)
    for head in range(HEADS):
        for position in range(TOKENS):
            reference.add(head, position, key[0, head, position], value[0, head, position])
            reference.heads[head][position]["score"] = float(mass[head, position])
    reference.shrink(TOKENS)
    same(layer, reference)
    for step in range(14):
        query, key, value = prompt(700 + step, 1, HEADS)
        layer.feed(query, key, value)
        for head in range(HEADS):
            reference.add(head, TOKENS + step, key[0, head, 0], value[0, head, 0])
        reference.attend(query)
        reference.shrink(TOKENS + step + 1)
        same(layer, reference)
    layer.check_votes(TOKENS + 14)
    assert layer.slots.votes.max() > 1
    assert layer.layer.evicted_votes is not None
    assert layer.layer.evicted_votes.min() > 0


def same(layer: Layer, reference: Reference) -> None:
    assert layer.layer.evicted_votes is not None
    for head, expected in enumerate(reference.heads):
        table = layer.table(head)
        assert sorted(table) == sorted(expected)
        for position, slot in expected.items():
            torch.testing.assert_close(table[position]["key"], slot["key"], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(table[position]["value"], slot["value"], rtol=1e-4, atol=1e-4)
            assert float(table[position]["votes"]) == slot["votes"]
        assert float(layer.layer.evicted_votes[0, head]) == reference.dropped[head]


def test_the_codes_mean_shrinks_keys_and_the_papers_does_not() -> None:
    """Weights of a merged key add up to 1 in the paper, and to less in the code wherever cosines are below 1."""
    for variant, least in (("paper", 1 - 1e-5), ("code", 0.0)):
        layer = Layer(make_method("d2o", variant=variant), BUDGET)
        layer.feed(*prompt(11, TOKENS, HEADS))
        layer.feed(*prompt(5, 1, HEADS))
        edges = layer.notes.decisions[0][1].edges
        assert edges is not None
        totals = {}
        for head, edge in edges.active[0].nonzero().tolist():
            at = (head, int(edges.target[0, head, edge]))
            totals.setdefault(at, float(edges.self_key_weight[0, head, edge]))
            totals[at] += float(edges.key_weight[0, head, edge])
        assert totals
        assert all(least <= total <= 1 + 1e-5 for total in totals.values())
        assert (variant == "paper") or min(totals.values()) < 0.95


def shares(variance: Tensor, over: str) -> list[float]:
    """Softmax of minus the scaled variances, written out; (layers, heads) to a list."""
    if over == "heads":
        scaled = [[(v - min(row)) / ((max(row) - min(row)) or 1) for v in row] for row in variance.tolist()]
        f = [sum(row) / len(row) for row in scaled]
    else:
        means = [sum(row) / len(row) for row in variance.tolist()]
        f = [(m - min(means)) / ((max(means) - min(means)) or 1) for m in means]
    total = sum(math.exp(-x) for x in f)
    return [math.exp(-x) / total for x in f]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    layers=st.integers(1, 12),
    average=st.integers(1, 60),
    over=st.sampled_from(["layers", "heads"]),
)
def test_layer_budgets_follow_the_variances_and_add_up(seed: int, layers: int, average: int, over: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    variance = torch.rand(2, layers, 3, generator=generator) ** 3
    tokens = 50
    allocator = Variance(over)
    budgets = torch.stack([allocator.head_budgets(view_of(variance, i, average, tokens)) for i in range(layers)], 1)
    assert (budgets == budgets[..., :1]).all(), "heads of a layer are equal"
    assert (budgets[..., 0].sum(1) == average * layers).all()
    assert budgets.min() >= 1
    assert budgets.max() <= max(tokens, average)
    for row in range(2):
        wanted = torch.tensor(shares(variance[row], over)) * average * layers
        if wanted.min() >= 1 and wanted.max() <= max(tokens, average):
            assert (budgets[row, :, 0] - wanted).abs().max() <= 1


def view_of(variance: Tensor, layer: int, average: int, tokens: int):
    """As much of a view as the allocator looks at."""
    return SimpleNamespace(
        statistics={index: variance[:, index] for index in range(variance.shape[1])},
        layer_idx=layer,
        budget=torch.full((2, variance.shape[2]), average),
        tokens_seen=torch.full((2,), tokens),
    )


def test_variances_ignore_padding() -> None:
    received = torch.tensor([[[9.0, 1.0, 2.0, 3.0]]])
    empty = torch.zeros(1, 1, 4)
    slots = Slots(empty[..., None], empty[..., None], empty.int(), empty, empty, received, empty > -1)
    slots.valid[..., 0] = False
    given = Variance().statistic(slots, None)
    torch.testing.assert_close(given, torch.tensor([[2 / 3]]))


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_flat_layers_get_more_and_the_total_is_exact(variant: str) -> None:
    """In a model: after the prompt the sum is what was asked."""
    lab = prepare(tiny_model("llama"))
    ids = torch.randint(3, 97, (1, 60), generator=torch.Generator().manual_seed(1))
    cache = make_cache(lab, "d2o", 0.25, variant=variant)
    with torch.inference_mode():
        lab(ids, past_key_values=cache)
    layers = cache.compressed_layers()
    assert sum(int(layer.budget[0, 0]) for layer in layers) == 15 * 3
    assert all((layer.slots.live() <= layer.budget).all() for layer in layers)
    variance = torch.stack([layer.settings.statistics[layer.layer_idx][0] for layer in layers])
    if variant == "paper":
        flattest = variance.mean(-1).argmin()
        assert int(layers[flattest].budget[0, 0]) == max(int(layer.budget[0, 0]) for layer in layers)
    wanted = shares(variance, "heads" if variant == "code" else "layers")
    for layer, share in zip(layers, wanted, strict=True):
        assert abs(int(layer.budget[0, 0]) - share * 45) <= 1


def test_spared_layers_keep_everything() -> None:
    lab = prepare(tiny_model("llama", num_hidden_layers=5))
    ids = torch.randint(3, 97, (1, 40), generator=torch.Generator().manual_seed(1))
    cache = make_cache(lab, "d2o", 0.2, variant="code", spare_layers=True)
    with torch.inference_mode():
        lab(ids, past_key_values=cache)
        for _ in range(3):
            lab(ids[:, :1], past_key_values=cache)
    lengths = [int(layer.slots.live().max()) for layer in cache.compressed_layers()]
    assert [lengths[0], lengths[1], lengths[4]] == [43, 43, 43]
    assert max(lengths[2], lengths[3]) < 15
    with pytest.raises(ValueError, match="only variant 'code' spares layers"):
        make_method("d2o", spare_layers=True)


def test_the_threshold_is_one_number_a_head_and_follows_its_row() -> None:
    """Rows swapped in mid-decoding, as beam search does: each goes on as it would have, and no slot carries it."""
    layers = [Layer(make_method("d2o"), BUDGET) for _ in range(2)]
    for layer in layers:
        layer.feed(*prompt(3, TOKENS, HEADS, batch=2))
        layer.feed(*prompt(4, 1, HEADS, batch=2))
    straight, turned = layers
    turned.layer.reorder_cache(torch.tensor([1, 0]))
    for step in range(4):
        states = prompt(40 + step, 1, HEADS, batch=2)
        straight.feed(*states)
        turned.feed(*(state.flip(0) for state in states))
    given, expected = turned.layer.tables[0].head_state["threshold"], straight.layer.tables[0].head_state["threshold"]
    assert given.shape == (2, HEADS)
    assert not torch.equal(expected[0], expected[1]), "rows that agree would prove nothing"
    torch.testing.assert_close(given.flip(0), expected)
    assert "threshold" not in straight.slots.extra
