"""KVMerger against Algorithms 1 and 2 written token by token."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvlab.core.methods import make_method
from kvlab.core.methods.settlers.consecutive import THETAS, anchors, find_sets, nearness
from tests.cache.layers import DIM, draw
from tests.methods.merging import Layer, column_mass

TOKENS = 45


def alike(seed: int, tokens: int = TOKENS, heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """A prompt whose neighbouring keys resemble each other: a random walk."""
    steps = draw(seed + 1, 1, heads, tokens, DIM)
    keys = torch.stack([steps[:, :, max(0, i - 3) : i + 1].sum(2) for i in range(tokens)], 2)
    return draw(seed, 1, 2 * heads, tokens, DIM), keys, draw(seed + 2, 1, heads, tokens, DIM)


def cosine(left: Tensor, right: Tensor) -> float:
    return float(left.double() @ right.double() / (left.double().norm() * right.double().norm()))


def scan(key: Tensor, free: list[int], theta: float, longest: int = 64) -> list[list[int]]:
    """Algorithm 1 over the positions `free`: consecutive sets, each token compared with the set's last (anchor)."""
    sets: list[list[int]] = []
    for position in reversed(free):
        if sets:
            anchor, last = sets[-1][0], sets[-1][-1]
            joins = last - 1 == position and len(sets[-1]) < longest
            if joins and cosine(key[position], key[anchor]) > theta:
                sets[-1].append(position)
                continue
        sets.append([position])
    return sets


def reference(
    key: Tensor, value: Tensor, score: Tensor, budget: int, over: list[float], sigma: str | float, longest: int
) -> dict[int, tuple[Tensor, Tensor, int]]:
    """Position -> (key, value, tokens) of what one head keeps."""
    tokens = len(key)
    recent = max(1, int((budget - 1) * 0.34))
    heavy = max(0, min(int(budget * 0.24), budget - 1 - recent))
    protected = set(range(tokens - recent, tokens))
    rest = sorted(set(range(tokens)) - protected, key=lambda i: -score[i].item())
    protected |= set(rest[:heavy])
    free = [i for i in range(tokens) if i not in protected]
    places = budget - len(protected)
    for value_of_theta in over:
        sets = scan(key, free, value_of_theta, longest)
        if len(sets) <= places:
            break
    pivots = [max(sorted(members), key=lambda i: score[i].item()) for members in sets]
    kept = sorted(range(len(sets)), key=lambda n: -score[pivots[n]].item())[:places]
    table = {i: (key[i], value[i], 1) for i in protected}
    for n in kept:
        pivot, members = pivots[n], sets[n]
        distance = {i: (key[pivot] - key[i]).norm().item() for i in members if i != pivot}
        if sigma == "mean_l2":
            width = sum(distance.values()) / max(len(distance), 1) / math.sqrt(2)
        elif sigma == "mean":
            width = sum(distance.values()) / max(len(distance), 1)
        elif sigma == "paper":
            width = sum(d * d for d in distance.values()) / (math.sqrt(2) * len(members))
        else:
            width = float(sigma)
        weight = {i: math.exp(-((d / width) ** 2) / 2) for i, d in distance.items()} | {pivot: 1.0}
        total = sum(weight.values())
        merged = [sum(weight[i] / total * states[i] for i in members) for states in (key, value)]
        table[pivot] = (merged[0], merged[1], len(members))
    return table


@pytest.mark.parametrize("sigma", ["mean_l2", "mean", "paper", 2.5])
@pytest.mark.parametrize(
    ("theta", "loosest", "budget", "longest"),
    [
        (None, -1.0, 20, 64),
        (None, -1.0, 9, 64),
        (None, 0.6, 9, 64),
        (None, 0.6, 32, 64),
        (0.5, 0.7, 12, 4),
        (0.9, 0, 30, 64),
    ],
)
def test_equals_the_algorithms_token_by_token(
    theta: float | None, loosest: float, budget: int, longest: int, sigma: str | float
) -> None:
    query, key, value = alike(3)
    options = {"theta": theta, "loosest": loosest, "sigma_mode": sigma, "longest_set": longest}
    layer = Layer(make_method("kvmerger", **options), budget)
    layer.feed(query, key, value)
    grid = [*(value for value in THETAS if value > loosest + 1e-9), loosest]
    over = grid if theta is None else [theta]
    score = column_mass(query, key)
    for head in range(2):
        expected = reference(key[0, head], value[0, head], score[head], budget, over, sigma, longest)
        given = layer.table(head)
        assert given.keys() == expected.keys()
        for position, (merged_key, merged_value, votes) in expected.items():
            torch.testing.assert_close(given[position]["key"], merged_key, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(given[position]["value"], merged_value, rtol=1e-4, atol=1e-4)
            assert given[position]["votes"] == votes
            assert given[position]["log_mass"] == 0
    layer.check_votes(TOKENS)
    assert layer.slots.votes.max() > 1, "the example merges nothing"


@pytest.mark.parametrize(
    ("preset", "budget", "recent", "heavy"), [("paper", 0.5, 0.17, 0.12), ("paper-35", 0.35, 0.08, 0.02)]
)
def test_presets_spare_the_papers_shares_of_the_prompt(preset: str, budget: float, recent: float, heavy: float) -> None:
    """Section 6.1 gives them as shares of the prompt: the last tokens, and the most attended of the others."""
    tokens = 200
    query, key, value = alike(5, tokens)
    layer = Layer(make_method("kvmerger", preset=preset), budget)
    layer.feed(query, key, value)
    score = column_mass(query, key)
    for head in range(2):
        last = range(tokens - round(recent * tokens) + 1, tokens)
        ranked = sorted(range(tokens - round(recent * tokens)), key=lambda i: -score[head, i].item())
        table = layer.table(head)
        for position in [*last, *ranked[: round(heavy * tokens) - 1]]:
            assert table[position]["votes"] == 1
            torch.testing.assert_close(table[position]["key"], key[0, head, position])
    safe = {int(p) for p, slot in layer.table(0).items() if slot["votes"] == 1}
    assert len(safe) < budget * tokens, "the example merges nothing"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), longest=st.integers(2, 12), theta=st.floats(-0.99, 0.99))
def test_sets_found_in_parallel_are_those_of_the_scan(seed: int, longest: int, theta: float) -> None:
    """Also with protected slots in between and positions missing."""
    generator = torch.Generator().manual_seed(seed)
    width = 40
    _, key, _ = alike(seed, width)
    position = torch.arange(width) + (torch.rand(1, 2, width, generator=generator) < 0.1).cumsum(-1)
    may_merge = torch.rand(1, 2, width, generator=generator) < 0.85
    near = nearness(key, position, may_merge, longest)
    sets = find_sets(near, may_merge, torch.full((1, 2), 5), theta)
    for head in range(2):
        by_position = {int(p): i for i, p in enumerate(position[0, head])}
        keys = {p: key[0, head, i] for p, i in by_position.items()}
        free = [p for p, i in by_position.items() if may_merge[0, head, i]]
        for members in scan(keys, free, theta, longest):
            for member in members:
                assert sets.anchor[0, head, by_position[member]] == by_position[members[0]]
        assert sets.is_anchor[0, head].sum() == len(scan(keys, free, theta, longest))


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=70))
def test_jumps_are_followed_to_the_first_slot(lengths: list[int]) -> None:
    place, reached = len(lengths) - 1, set()
    while place >= 0:
        reached.add(place)
        place -= lengths[place]
    found = anchors(torch.tensor(lengths)[None, None])[0, 0].nonzero()[:, 0].tolist()
    assert set(found) == reached


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    budget=st.integers(1, 40),
    theta=st.sampled_from([None, 0.75, -1.0, 1.0]),
    loosest=st.sampled_from([-1.0, 0.75]),
)
def test_the_budget_is_met_and_votes_add_up(seed: int, budget: int, theta: float | None, loosest: float) -> None:
    layer = Layer(make_method("kvmerger", theta=theta, loosest=loosest), budget)
    layer.feed(*alike(seed))
    assert (layer.slots.live() <= budget).all()
    layer.check_votes(TOKENS)
    if theta is None and loosest == -1 and budget > 10:
        assert (layer.layer.evicted_votes == 0).all(), (
            "a threshold that meets this budget exists, so nothing is evicted"
        )


def test_generated_tokens_come_on_top_or_inside() -> None:
    for decode, expected in (("keep", 15 + 6), ("evict", 15)):
        layer = Layer(make_method("kvmerger", decode=decode, theta=1.0), 15)
        layer.feed(*alike(0))
        for step in range(6):
            layer.feed(draw(step, 1, 4, 1, DIM), draw(step + 9, 1, 2, 1, DIM), draw(step + 99, 1, 2, 1, DIM))
        assert (layer.slots.live() == expected).all()
        layer.check_votes(TOKENS + 6)


def test_pairs_always_get_the_same_weights() -> None:
    """Two tokens: the mean distance is their distance, so the weights are 1 and exp(-1) whatever the keys are."""
    layer = Layer(make_method("kvmerger", longest_set=2, theta=-1.0), 27)
    layer.feed(*alike(1))
    edges = layer.notes.decisions[0][1].edges
    assert edges is not None
    assert edges.active.any()
    expected = math.exp(-1) / (1 + math.exp(-1))
    torch.testing.assert_close(edges.key_weight[edges.active], torch.full((int(edges.active.sum()),), expected))


def test_scaling_all_keys_changes_no_weight() -> None:
    weights = []
    for scale in (1.0, 50.0):
        query, key, value = alike(1)
        layer = Layer(make_method("kvmerger", theta=0.4), 30)
        layer.feed(query / scale, key * scale, value)
        edges = layer.notes.decisions[0][1].edges
        assert edges is not None
        weights.append(edges.key_weight.masked_fill(~edges.active, 0))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-6)


def test_a_random_pivot_changes_the_pivot_and_nothing_else() -> None:
    """The sets stay; each set's tokens now go to a member that is not always the most attended one."""
    sets, pivots = [], []
    for pivot in ("attention", "random"):
        layer = Layer(make_method("kvmerger", theta=0.4, pivot=pivot), 30)
        layer.feed(*alike(1))
        edges = layer.notes.decisions[0][1].edges
        assert edges is not None
        joined = [
            set(zip(edges.source[0, h][there].tolist(), edges.target[0, h][there].tolist(), strict=True))
            for h, there in enumerate(edges.active[0])
        ]
        pivots.append(joined)
        groups = [{t: {t} | {s for s, other in pairs if other == t} for _, t in pairs} for pairs in joined]
        sets.append([{frozenset(group) for group in of_head.values()} for of_head in groups])
    assert sets[0] == sets[1]
    assert pivots[0] != pivots[1]


def test_average_weights_are_a_plain_mean() -> None:
    query, key, value = alike(1)
    layer = Layer(make_method("kvmerger", theta=0.4, weights="average"), 30)
    layer.feed(query, key, value)
    edges = layer.notes.decisions[0][1].edges
    assert edges is not None
    for head in range(2):
        table = layer.table(head)
        for target in set(edges.target[0, head][edges.active[0, head]].tolist()):
            members = edges.source[0, head][edges.active[0, head] & (edges.target[0, head] == target)].tolist()
            mean = value[0, head][[target, *members]].mean(0)
            torch.testing.assert_close(table[target]["value"], mean, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"recent": 0.7, "heavy": 0.4}, "leave room"),
        ({"sigma_mode": -1.0}, "above 0"),
        ({"sigma_mode": "median"}, "sigma_mode"),
        ({"theta": 1.5}, "theta"),
        ({"pivot": "first"}, "pivot"),
        ({"weights": "median"}, "weights"),
    ],
)
def test_bad_settings_get_one_sentence(options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        make_method("kvmerger", **options)
    assert str(error.value).count("\n") == 0
