"""Budgets over layers and heads: exact totals, the published shapes, and kept positions against slow references."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvlab.core.budget import Budget
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.settings import LayerSettings
from kvlab.core.contract.numerics import proportional, round_to_total
from kvlab.core.methods import make_method
from kvlab.core.methods.allocators.cosine import CosineDecay
from kvlab.core.methods.allocators.pyramid import Pyramid
from kvlab.core.methods.eviction.key_norm import FirstLayers
from tests.cache.layers import DIM, HandLayer, draw
from tests.methods.test_selection import BUDGET, TOKENS, kept, mass_of, prompt, top

WINDOW = 4


class LayerOf(HandLayer):
    """One layer of a model of several."""

    def __init__(self, method: str, budget: float | int, layer: int, num_layers: int, **options: object) -> None:
        pipeline = make_method(method, **options).pipeline()
        self.layer = CompressedLayer(layer, LayerSettings(pipeline, Budget(budget), num_layers=num_layers))


schedules = st.one_of(
    st.builds(FirstLayers, st.integers(0, 5)),
    st.builds(Pyramid, st.integers(1, 40), st.floats(1, 50), st.sampled_from(["paper", "code"])),
    st.builds(
        CosineDecay,
        st.floats(0.01, 1),
        st.sampled_from(["compound", "direct"]),
        st.sampled_from([0.0, 0.2]),
        st.sampled_from([0, 8]),
        st.integers(1, 3),
    ),
)


@settings(max_examples=300, deadline=None)
@given(schedule=schedules, average=st.integers(1, 300), tokens=st.integers(1, 500), layers=st.integers(1, 40))
def test_layer_budgets_have_the_exact_total_and_fall_with_depth(schedule, average, tokens, layers) -> None:
    budgets = schedule.layer_budgets(average, tokens, layers)
    assert len(budgets) == layers
    assert sum(budgets) == average * layers
    assert min(budgets) >= 1
    assert max(budgets) <= max(average, tokens)
    assert budgets == sorted(budgets, reverse=True)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 50), min_size=1, max_size=30))
def test_rounding_keeps_total_and_order_and_moves_less_than_a_slot(wanted: list[float]) -> None:
    total = round(sum(wanted))
    wanted = [w * total / sum(wanted) for w in wanted] if sum(wanted) else wanted
    shares = round_to_total(torch.tensor(wanted, dtype=torch.float64), total).tolist()
    assert sum(shares) == total
    assert all(abs(share - w) < 1 + 1e-9 for share, w in zip(shares, wanted, strict=True))
    assert [shares[i] for i in sorted(range(len(wanted)), key=lambda i: -wanted[i])] == sorted(shares, reverse=True)


def test_what_a_bound_takes_is_shared_by_the_rest_in_proportion() -> None:
    assert proportional([8, 4, 2, 2], 16, least=1, most=100) == [8, 4, 2, 2]
    assert proportional([8, 4, 2, 2], 16, least=1, most=6) == [6, 5, 3, 2]
    assert proportional([100, 1, 1], 12, least=3, most=100) == [6, 3, 3]


@pytest.mark.parametrize(("average", "tokens", "layers"), [(64, 2000, 32), (64, 100, 32), (30, 2000, 5), (20, 21, 7)])
def test_the_pyramid_is_the_published_line(average: int, tokens: int, layers: int) -> None:
    base = average - 8
    first = min(2 * base - Fraction(base, 20), Fraction(tokens - 8))
    last = 2 * base - first
    budgets = Pyramid().layer_budgets(average, tokens, layers)
    for layer, budget in enumerate(budgets):
        assert abs(budget - 8 - (first - (first - last) * layer / (layers - 1))) < 1


@pytest.mark.parametrize(("average", "layers"), [(64, 32), (128, 32), (2048, 32), (12, 32), (40, 3)])
def test_the_authors_schedule_is_shifted_to_the_exact_total(average: int, layers: int) -> None:
    base = average - 8
    step = (2 * base - 2 * (base // 20)) // (layers - 1)
    published = [2 * base - base // 20 - layer * step for layer in range(layers)]
    excess = sum(published) - base * layers
    assert 0 <= excess <= layers * (layers - 1) / 2
    ours = Pyramid(variant="code").layer_budgets(average, 10**6, layers)
    assert {was - (budget - 8) for was, budget in zip(published, ours, strict=True)} <= {
        excess // layers,
        -(-excess // layers),
    }


def test_a_short_prompt_has_equal_layers_in_the_authors_schedule() -> None:
    assert Pyramid(variant="code").layer_budgets(60, 103, 4) == [60] * 4
    assert Pyramid(variant="paper").layer_budgets(60, 103, 4) == [103, 74, 46, 17]


def test_the_first_layers_keep_the_prompt_out_of_the_same_budget() -> None:
    assert FirstLayers(2).layer_budgets(50, 100, 6) == [100, 100, 25, 25, 25, 25], "what is left, shared equally"
    assert FirstLayers(1).layer_budgets(20, 100, 6) == [70, 10, 10, 10, 10, 10], "the others have half of the average"
    assert FirstLayers(2).layer_budgets(41, 100, 3) == [51, 51, 21]
    assert FirstLayers(3).layer_budgets(20, 100, 3) == [20] * 3, "no layer would be left to pay"
    assert FirstLayers(2).layer_budgets(20, 20, 3) == [20] * 3


def published_lengths(tokens: int, layers: int, ratio: float, interval: int, minimum: int) -> list[int]:
    """PyramidInfer's prompt, layer by layer as the authors' loop goes: what each layer caches."""
    recent = int(tokens * 0.2)
    states, cached = list(range(tokens)), []
    least = min(minimum, tokens - 1 - recent)
    for layer in range(layers):
        cached.append(len(states))
        decay = (1.0 - ratio) * (math.cos(math.pi * layer / layers) + 1) / 2 + ratio
        context = len(states) - (1 + recent)
        if layer % interval == 0 and context > least and decay < 1.0:
            through = int(context * decay) if int(context * decay) > least else context
            states = states[:through] + states[-(1 + recent) :]
    return cached


@settings(max_examples=50, deadline=None)
@given(
    tokens=st.integers(2, 5000),
    layers=st.integers(1, 80),
    ratio=st.floats(0.3, 1),
    interval=st.integers(1, 3),
    minimum=st.sampled_from([0, 64]),
)
@example(tokens=2048, layers=32, ratio=0.9, interval=1, minimum=64)
def test_the_decays_alone_are_the_authors_loop(
    tokens: int, layers: int, ratio: float, interval: int, minimum: int
) -> None:
    ours = CosineDecay(ratio, region=0.2, minimum=minimum, interval=interval, free=True).lengths(tokens, layers)
    assert ours == published_lengths(tokens, layers, ratio, interval, minimum)


def test_the_same_total_is_split_as_the_authors_loop_splits_it() -> None:
    """The recent fifth is not cut, the decay acts on the rest, and the first two layers keep all."""
    theirs = published_lengths(2048, 32, 0.9, 1, 64)
    assert theirs[:2] == [2048, 2048] and theirs[-1] == 768
    average = round(sum(theirs) / 32)
    ours = CosineDecay(0.9, region=0.2).layer_budgets(average, 2048, 32)
    assert sum(ours) == 32 * average and ours[0] == ours[1]
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) <= 6, "theirs rounds down at every layer"
    small = CosineDecay(0.9, region=0.2).layer_budgets(600, 2048, 32)
    context = [slots - 1 - int(0.2 * 2048) for slots in small]
    product = [1.0]
    for layer in range(31):
        product.append(product[-1] * (0.1 * (math.cos(math.pi * layer / 32) + 1) / 2 + 0.9))
    scale = sum(context) / sum(product)
    assert all(abs(slots - scale * share) < 1 for slots, share in zip(context, product, strict=True))
    floor = CosineDecay(0.9, region=0.2, minimum=64).layer_budgets(500, 2048, 32)
    assert min(floor) == 64 + 1 + int(0.2 * 2048) and sum(floor) == 32 * 500
    assert CosineDecay(0.9, region=0.2).layer_budgets(400, 2048, 32) == [400] * 32, "a local window"


def test_pyramidkv_keeps_the_best_of_its_layers_budget() -> None:
    query, key, value = prompt()
    budgets = Pyramid(WINDOW).layer_budgets(BUDGET, TOKENS, 4)
    raw = mass_of(query[:, :, -WINDOW:], key).sum(1)
    for layer in range(4):
        hand = LayerOf("pyramidkv", BUDGET, layer, 4, window=WINDOW, kernel=1)
        hand.feed(query, key, value)
        for head in range(2):
            best = top(raw[head], range(TOKENS - WINDOW), budgets[layer] - WINDOW)
            assert kept(hand)[head] == sorted(best + list(range(TOKENS - WINDOW, TOKENS)))


def head_lengths(scores: list[list[float]], base: int, floor: float, rule: str) -> list[int]:
    """AdaKV for one layer, token by token: how many context slots each head gets."""
    heads = len(scores)
    ranked = sorted(((s, h, j) for h in range(heads) for j, s in enumerate(scores[h])), reverse=True)
    if rule == "guarantee":
        safe = {
            (h, j)
            for h in range(heads)
            for j in sorted(range(len(scores[h])), key=lambda j: -scores[h][j])[: int(floor * base)]
        }
        rest = [(h, j) for _, h, j in ranked if (h, j) not in safe]
        winners = [*safe, *rest[: heads * base - len(safe)]]
        return [sum(head == h for head, _ in winners) for h in range(heads)]
    counts = [sum(head == h for _, head, _ in ranked[: heads * base]) for h in range(heads)]
    if rule == "rounded":  # the authors' lines: a whole floor, then each head by itself
        return [round(count * (1 - floor) + int(base * floor)) for count in counts]
    wanted = [count * (1 - floor) + floor * base for count in counts]
    lengths = [int(w) for w in wanted]
    by_remainder = sorted(range(heads), key=lambda h: round(lengths[h] - wanted[h], 9))
    for head in by_remainder[: heads * base - sum(lengths)]:
        lengths[head] += 1
    return lengths


@pytest.mark.parametrize("rule", ["blend", "rounded", "guarantee"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), budget=st.integers(WINDOW + 1, TOKENS - 1), floor=st.just(0.0) | st.floats(1e-9, 1))
@example(seed=2, budget=5, floor=1 / 3)  # remainders that are equal but for rounding
def test_adakv_against_a_slow_reference(rule: str, seed: int, budget: int, floor: float) -> None:
    hand = LayerOf("adakv", budget, 0, 1, window=WINDOW, kernel=1, floor=floor, floor_rule=rule)
    spread = torch.tensor([0.3, 1.0, 2.5])[:, None, None]
    query, key = draw(seed, 1, 6, TOKENS, DIM) * 2, draw(seed + 1, 1, 3, TOKENS, DIM) * spread
    value = draw(seed + 2, 1, 3, TOKENS, DIM)
    hand.feed(query, key, value)
    raw = mass_of(query[:, :, -WINDOW:], key).sum(1)[:, : TOKENS - WINDOW]
    lengths = head_lengths(raw.tolist(), budget - WINDOW, floor, rule)
    assert hand.layer.budget is not None
    assert hand.layer.budget[0].tolist() == [WINDOW + length for length in lengths]
    assert abs(int(hand.layer.budget.sum()) - 3 * budget) <= (4.5 if rule == "rounded" else 0)
    for head, length in enumerate(lengths):
        best = top(raw[head], range(TOKENS - WINDOW), length)
        assert kept(hand)[head] == sorted(best + list(range(TOKENS - WINDOW, TOKENS)))
        assert length >= int(floor * (budget - WINDOW))


def test_a_head_that_gathers_its_attention_gets_fewer_slots() -> None:
    """Head 0 looks at two tokens alone, head 1 at all: head 1 wins slots, and order of heads does not matter."""
    query = torch.ones(1, 2, TOKENS, DIM)
    key = torch.randn(1, 2, TOKENS, DIM, generator=torch.Generator().manual_seed(0)) * 0.05
    key[0, 0, [3, 9]] = 3.0
    budgets = {}
    for order in ([0, 1], [1, 0]):
        hand = LayerOf("adakv", BUDGET, 0, 1, window=WINDOW, kernel=1)
        hand.feed(query, key[:, order], key[:, order])
        assert hand.layer.budget is not None
        budgets[tuple(order)] = hand.layer.budget[0].tolist()
    assert budgets[0, 1][0] < BUDGET < budgets[0, 1][1]
    assert budgets[1, 0] == budgets[0, 1][::-1]
    equal = LayerOf("adakv", BUDGET, 0, 1, window=WINDOW, floor=1.0)
    equal.feed(query, key, key)
    assert equal.layer.budget.tolist() == [[BUDGET, BUDGET]]


@pytest.mark.parametrize("heads", ["shared", "each"])
def test_pyramidinfer_prompt_and_decode(heads: str) -> None:
    hand, (query, key, value) = LayerOf("pyramidinfer", BUDGET, 0, 1, heads=heads, sinks=2), prompt()
    hand.feed(query, key, value)
    rows, recent = 1 + TOKENS // 5, int(BUDGET * 0.2)
    weight = torch.linspace(1, 1.2, rows)
    score = (mass_of(query[:, :, -rows:], key) * weight[:, None]).sum(1) / rows
    count = torch.full((2, TOKENS), float(rows))
    score = score.mean(0, keepdim=True).expand(2, -1) if heads == "shared" else score
    keep = []
    for head in range(2):
        middle = top(score[head], range(2, TOKENS - recent), BUDGET - 2 - recent)
        keep.append(sorted([0, 1, *middle, *range(TOKENS - recent, TOKENS)]))
    assert kept(hand) == keep
    for step in range(8):
        new = draw(90 + step, 1, 4, 1, DIM), draw(190 + step, 1, 2, 1, DIM), draw(290 + step, 1, 2, 1, DIM)
        hand.feed(*new)
        seen = TOKENS + step + 1
        key = torch.cat([key, new[1]], 2)
        score, count = (torch.cat([t, torch.zeros(2, 1)], 1) for t in (score, count))
        mass = torch.zeros(2, seen)
        for head in range(2):
            alive = torch.tensor([*keep[head], seen - 1])
            mass[head, alive] = mass_of(new[0], key[:, :, alive])[head, 0]
        mass = mass.mean(0, keepdim=True).expand(2, -1) if heads == "shared" else mass
        count = (count + 1).clamp_max(1 + seen // 5)
        score = score + (mass - score) / count
        for head in range(2):
            alive = [*keep[head], seen - 1]
            weakest = min(alive[2:-recent], key=lambda position: score[head, position].item())
            keep[head] = [position for position in alive if position != weakest]
        assert kept(hand) == keep
    assert (kept(hand)[0] == kept(hand)[1]) or heads == "each"


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("pyramidkv", {"kernel": 4}, "must be odd"),
        ("pyramidkv", {"beta": 0.5}, "'beta' of pyramidkv"),
        ("adakv", {"kernel": 2}, "must be odd"),
        ("adakv", {"floor": 1.2}, "'floor' of adakv"),
        ("pyramidinfer", {"ratio": 0}, "'ratio' of pyramidinfer"),
        ("gvote", {"p_nuc": 0}, "'p_nuc' of gvote"),
    ],
)
def test_bad_hyper_parameters_get_one_sentence(method: str, options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_method(method, **options)
