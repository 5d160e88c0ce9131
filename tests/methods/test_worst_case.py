"""Aggregates and decay of the window's attention, and DefensiveKV's two stages, against plain loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvlab.core.budget import Budget
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.settings import LayerSettings
from kvlab.core.methods import make_method
from tests.cache.inside import GROUP, HEADS, HIDDEN, Attention, feed, output_part
from tests.cache.layers import DIM, HandLayer, draw
from tests.methods.merging import Layer
from tests.methods.test_selection import kept, mass_of, prompt

TOKENS, WINDOW, KERNEL = 40, 4, 3
CONTEXT = TOKENS - WINDOW


def rows_of(query: Tensor, key: Tensor) -> Tensor:
    """(Hq, WINDOW, CONTEXT) attention of each query head's last queries to the slots before them."""
    each = mass_of(query, key.repeat_interleave(query.shape[1] // key.shape[1], 1))
    return each[:, -WINDOW:, :CONTEXT]


def smooth(row: list[float]) -> list[float]:
    """Mean over three neighbours, with zeros beyond the ends."""
    padded = [0.0, *row, 0.0]
    return [sum(padded[t : t + KERNEL]) / KERNEL for t in range(len(row))]


def combined(rows: Tensor, aggregate: str, decay: float, norms: list[float]) -> list[float]:
    """One head's scores from the attention (GROUP, WINDOW, CONTEXT) of its group, written as the formula."""
    found = []
    for head in rows.tolist():
        for index, row in enumerate(head):
            counted = [mass * decay ** (WINDOW - 1 - index) for mass in row]
            pooled = smooth(counted)
            if aggregate == "worst":  # the sum is restored
                pooled = [mass * sum(counted) / max(sum(pooled), 1e-20) for mass in pooled]
            found.append(pooled)
    if aggregate == "mean":
        return [sum(row[t] for row in found) / GROUP for t in range(CONTEXT)]
    most = [max(row[t] for row in found) for t in range(CONTEXT)]
    if aggregate == "max":
        return most
    floor = sum(most) / CONTEXT
    return [max(score, floor) * norm for score, norm in zip(most, norms, strict=True)]


def states() -> tuple[Tensor, Tensor, Tensor]:
    value = draw(3, 1, HEADS, TOKENS, DIM) * draw(4, 1, HEADS, TOKENS, 1).exp()
    return draw(1, 1, HEADS * GROUP, TOKENS, DIM) * 2, draw(2, 1, HEADS, TOKENS, DIM), value


def projected(module: Attention, value: Tensor) -> list[list[float]]:
    """||W_o v||_1 by KV head and token, mean over the group."""
    return [
        [
            sum(float(output_part(module, head * GROUP + g, value[0, head, t]).abs().sum()) for g in range(GROUP))
            / GROUP
            for t in range(CONTEXT)
        ]
        for head in range(HEADS)
    ]


def relative(norms: list[list[float]]) -> list[list[float]]:
    """Each head's norms by those of the same token in all heads."""
    return [[own[t] * HEADS / sum(head[t] for head in norms) for t in range(CONTEXT)] for own in norms]


@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("aggregate", ["mean", "max", "worst"])
def test_the_window_is_combined_query_by_query(aggregate: str, decay: float) -> None:
    options = {"window": WINDOW, "kernel": KERNEL, "pooling": "average", "edges": "zeros"}
    method = make_method("snapkv", aggregate=aggregate, decay=decay, **options)
    layer, module = Layer(method, 14), Attention()
    query, key, value = states()
    feed(layer, module, draw(5, 1, TOKENS, HIDDEN), query, key, value)
    rows, norms = rows_of(query, key), relative(projected(module, value))
    for head in range(HEADS):
        score = combined(rows[head * GROUP : (head + 1) * GROUP], aggregate, decay, norms[head])
        best = sorted(range(CONTEXT), key=lambda t: -score[t])[: 14 - WINDOW]
        assert sorted(layer.table(head)) == sorted([*best, *range(CONTEXT, TOKENS)])


@pytest.mark.parametrize("aggregate", ["mean", "max"])
def test_decays_of_nothing_and_all_are_the_newest_query_and_the_sum(aggregate: str) -> None:
    options = {"window": WINDOW, "kernel": 1, "aggregate": aggregate}
    plain, whole, last = (HandLayer("snapkv", 14, **options, **more) for more in ({}, {"decay": 1.0}, {"decay": 0.0}))
    for hand in (plain, whole, last):
        hand.feed(*prompt())
    assert kept(whole) == kept(plain)
    query, key, _ = prompt()
    each = mass_of(query, key.repeat_interleave(2, 1))[:, -1, :CONTEXT].unflatten(0, (2, 2))
    newest = each.mean(1) if aggregate == "mean" else each.amax(1)
    for head in range(2):
        best = sorted(range(CONTEXT), key=lambda t: -float(newest[head, t]))[: 14 - WINDOW]
        assert kept(last)[head] == sorted([*best, *range(CONTEXT, TOKENS)])


@pytest.mark.parametrize("aggregate", ["mean", "max"])
def test_decisions_while_decoding_ask_the_newest_queries(aggregate: str) -> None:
    """The prompt's scores and those of the same text reached by decoding are equal where the same slots are there."""
    options = {"window": WINDOW, "kernel": KERNEL, "aggregate": aggregate, "decay": 0.7}
    query, key, value = prompt()
    at_once = HandLayer("snapkv", 14, **options)
    at_once.feed(query, key, value)
    stepwise = HandLayer("snapkv", TOKENS, decode="budget", buffer=6, **options)
    for start, end in [(0, TOKENS - 6), *((t, t + 1) for t in range(TOKENS - 6, TOKENS))]:
        stepwise.feed(*(part[:, :, start:end] for part in (query, key, value)))
    ours, theirs = (hand.layer.slots for hand in (stepwise, at_once))
    assert ours is not None and theirs is not None
    for head in range(2):
        scores = [
            {int(p): float(s) for p, s, v in zip(slots.position[0, head], slots.score[0, head], slots.valid[0, head],
                                                 strict=True) if v and int(p) < CONTEXT}
            for slots in (ours, theirs)
        ]  # fmt: skip
        shared = scores[0].keys() & scores[1].keys()
        assert shared
        assert all(scores[0][t] == pytest.approx(scores[1][t], rel=1e-4) for t in shared)


def covered(mean: list[float], share: float, most: int) -> list[int]:
    """The first slots by mean attention that together have less than `share` of it."""
    ranked = sorted(range(CONTEXT), key=lambda t: -mean[t])
    sums = [sum(mean[t] for t in ranked[: count + 1]) / sum(mean) for count in range(CONTEXT)]
    return [t for t, together in zip(ranked, sums, strict=True) if together < share][:most]


@pytest.mark.parametrize("budget", [12, 16, 24])
@pytest.mark.parametrize("covering", [0.0, 0.6, 0.9])
def test_defensivekv_covers_the_mean_first_and_then_the_worst(covering: float, budget: int) -> None:
    layers = {name: pair(name, covering, budget) for name in ("defensivekv", "layer-defensivekv")}
    query, key, value = states()
    found = []
    for seed, module in enumerate((Attention(), Attention(60))):
        states_of_layer = query.roll(seed, 2), key, value.roll(seed, 1)
        for both in layers.values():
            feed(both[seed], module, draw(5, 1, TOKENS, HIDDEN), *states_of_layer)  # type: ignore[arg-type]
        rows, norms = rows_of(*states_of_layer[:2]), relative(projected(module, states_of_layer[2]))
        groups = [rows[head * GROUP : (head + 1) * GROUP] for head in range(HEADS)]
        means = [group.mean((0, 1)).tolist() for group in groups]
        near = sum(sum(mean[CONTEXT - WINDOW :]) for mean in means) / HEADS
        scores = [combined(groups[head], "worst", 1.0, norms[head]) for head in range(HEADS)]
        highest = max(max(score) for score in scores)
        for head in range(HEADS):
            for t in covered(means[head], covering - near, CONTEXT * budget // TOKENS - WINDOW):
                scores[head][t] = highest
        found.append(scores)
    left = (budget - WINDOW) * HEADS
    for name, both in layers.items():
        pools = [[0], [1]] if name == "defensivekv" else [[0, 1]]
        for pool in pools:
            every = [(found[layer][head][t], layer, head, t) for layer in pool for head in range(HEADS)
                     for t in range(CONTEXT)]  # fmt: skip
            least = sorted((slot[0] for slot in every), reverse=True)[left * len(pool) - 1]
            for layer in pool:
                for head in range(HEADS):
                    own = found[layer][head]
                    stays = set(kept(both[layer])[head])
                    assert stays >= set(range(CONTEXT, TOKENS))
                    assert stays >= {t for t in range(CONTEXT) if own[t] > least * (1 + 1e-3)}
                    assert not stays & {t for t in range(CONTEXT) if own[t] < least * (1 - 1e-3)}
            assert sum(len(kept(both[layer])[head]) for layer in pool for head in range(HEADS)) == (
                budget * HEADS * len(pool)
            )


class One(HandLayer):
    """One layer of several that share settings."""

    def __init__(self, settings: LayerSettings, index: int) -> None:
        self.layer = CompressedLayer(index, settings)


def pair(name: str, covering: float, budget: int) -> list[One]:
    options = {"window": WINDOW, "kernel": KERNEL, "covering": covering}
    settings = LayerSettings(make_method(name, **options).pipeline(), Budget(budget), num_layers=2)
    return [One(settings, index) for index in range(2)]


@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("aggregate", ["mean", "max"])
def test_h2o_sums_or_takes_the_largest_while_it_decodes(aggregate: str, decay: float) -> None:
    """In a prompt of two passes' worth, read at once, and token by token after it."""
    hand, (query, key, value) = HandLayer("h2o", 14, aggregate=aggregate, decay=decay), prompt()
    new = [(draw(90 + step, 1, 4, 1, DIM), draw(190 + step, 1, 2, 1, DIM), value[:, :, :1]) for step in range(5)]
    each = mass_of(query, key.repeat_interleave(2, 1)).unflatten(0, (2, 2))  # (H, G, q, S)
    score, keep = [], []
    for head in range(2):
        terms = [[[each[head, g, q, t].item() * decay ** (TOKENS - 1 - q) for t in range(TOKENS)]
                  for q in range(TOKENS)] for g in range(2)]  # fmt: skip
        score.append({t: together([row[t] for rows in terms for row in rows], aggregate) for t in range(TOKENS)})
        best = sorted(range(TOKENS - 7), key=lambda t: -score[head][t])[:7]
        keep.append(sorted([*best, *range(TOKENS - 7, TOKENS)]))
    hand.feed(query, key, value)
    assert kept(hand) == keep
    for step, states_of_token in enumerate(new):
        hand.feed(*states_of_token)
        key = torch.cat([key, states_of_token[1]], 2)
        for head in range(2):
            alive = [*keep[head], TOKENS + step]
            one = mass_of(states_of_token[0], key[:, :, alive].repeat_interleave(2, 1)).unflatten(0, (2, 2))[head, :, 0]
            for index, t in enumerate(alive):
                fresh, old = together(one[:, index].tolist(), aggregate), decay * score[head].get(t, 0.0)
                score[head][t] = old + fresh if aggregate == "mean" else max(old, fresh)
            heavy = [t for t in alive if t < TOKENS + step + 1 - 7]
            keep[head] = [t for t in alive if t != min(heavy, key=lambda t, head=head: score[head][t])]
        assert kept(hand) == keep


def together(terms: list[float], aggregate: str) -> float:
    """Sum, halved for a group of two, or maximum."""
    return sum(terms) / 2 if aggregate == "mean" else max(terms)
