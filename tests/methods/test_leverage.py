"""CurDKV, Compactor and CapKV: leverage in its several forms, from formulas written token by token."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kvlab.core.methods import make_method
from tests.cache.inside import GROUP, HEADS, HIDDEN, Attention, feed
from tests.cache.layers import DIM, draw
from tests.methods.merging import ROTARY, Layer
from tests.methods.test_expected_attention import ahead, turned

TOKENS, BUDGET = 30, 12


def run(method: str, rotates: bool = True, **options: object) -> tuple[Layer, Attention, tuple[Tensor, ...]]:
    """A layer after a prompt, its module, and states, queries, keys and values (of row 0)."""
    layer, module = Layer(make_method(method, **options), BUDGET, ROTARY if rotates else None), Attention()
    given = (
        draw(7, 1, TOKENS, HIDDEN),
        draw(11, 1, HEADS * GROUP, TOKENS, DIM) * 2,
        draw(8, 1, HEADS, TOKENS, DIM),
        draw(9, 1, HEADS, TOKENS, DIM) * draw(10, 1, HEADS, TOKENS, 1).exp(),
    )
    feed(layer, module, *given)
    return layer, module, tuple(part[0].double() for part in given)


def check(layer: Layer, head: int, score: dict[int, float], sinks: int, recent: int = 1) -> None:
    """The sinks, the newest, and the best of the others, with these scores."""
    others = [t for t in score if sinks <= t < TOKENS - recent]
    best = sorted(others, key=lambda t: -score[t])[: BUDGET - sinks - recent]
    assert sorted(layer.table(head)) == sorted([*range(sinks), *best, *range(TOKENS - recent, TOKENS)])
    for token in best:
        assert float(layer.table(head)[token]["score"]) == pytest.approx(score[token], rel=2e-3, abs=1e-5)


@pytest.mark.parametrize(("of", "part"), [("product", 16), ("mean", 7), ("key", 4), ("value", 50)])
def test_curdkv_compares_squared_lengths_within_parts(of: str, part: int) -> None:
    layer, _, (_, _, key, value) = run("cur", of=of, part=part, sinks=2)
    for head in range(HEADS):
        shares = []
        for states in (key, value):
            squares = [sum(float(x) ** 2 for x in states[head, t]) for t in range(TOKENS)]
            parts = [range(t - t % part, min(t - t % part + part, TOKENS)) for t in range(TOKENS)]
            shares.append([squares[t] / sum(squares[o] for o in parts[t]) for t in range(TOKENS)])
        both = {"product": lambda k, v: k * v, "mean": lambda k, v: (k + v) / 2}
        rule = {"key": lambda k, v: k, "value": lambda k, v: v, **both}[of]
        raw = [rule(k, v) for k, v in zip(*shares, strict=True)]
        check(layer, head, {t: raw[t] / sum(raw) for t in range(TOKENS)}, 2)


@pytest.mark.parametrize("rotates", [True, False])
def test_capkv_keeps_what_adds_most_to_the_determinant(rotates: bool) -> None:
    """Leverage by an explicit inverse, for the mean query of each query head; and its meaning as a derivative."""
    layer, module, (states, _, key, value) = run("cap", rotates, sinks=2, n_future=5, tau=3.0)
    with torch.no_grad():
        query = module.q_proj(states.float()).double().unflatten(-1, (HEADS * GROUP, DIM))
    for head in range(HEADS):
        score = dict.fromkeys(range(2, TOKENS), 0.0)
        for number in range(head * GROUP, (head + 1) * GROUP):
            anchor = query[2:, number].mean(0)
            anchor = ahead(anchor, TOKENS) if rotates else anchor
            cosine = {t: float(torch.cosine_similarity(anchor, key[head, t], dim=0)) for t in score}
            weight = {t: math.exp(3.0 * (each - max(cosine.values()))) for t, each in cosine.items()}
            matrix = torch.eye(DIM, dtype=torch.float64)
            for t in score:
                matrix += weight[t] * torch.outer(value[head, t], value[head, t])
            for t in score:
                own = weight[t] * float(value[head, t] @ matrix.inverse() @ value[head, t])
                score[t] += own / GROUP
                without = matrix - weight[t] * torch.outer(value[head, t], value[head, t])
                assert own == pytest.approx(1 - float(torch.det(without) / torch.det(matrix)), rel=1e-6)
        check(layer, head, score, 2)


def standard(raw: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    mean = sum(raw.values()) / len(raw)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in raw.values()) / (len(raw) - 1))
    return {where: (each - mean) / deviation for where, each in raw.items()}


@pytest.mark.parametrize(("sketch", "chunk", "rotates"), [(0, 8, True), (5, 7, True), (0, 64, False)])
def test_compactor_blends_leverage_and_attention_both_ways(sketch: int, chunk: int, rotates: bool) -> None:
    sinks, recent, blend = 3, 2, 0.5
    options = {"sinks": sinks, "recent": recent, "blend": blend, "sketch": sketch, "chunk": chunk}
    layer, _, (_, query, key, value) = run("compactor", rotates, **options)
    inner = list(range(sinks, TOKENS - recent))
    leverage, attention = {}, {}
    for head in range(HEADS):
        plain = torch.stack([turned(key[head, t], -t) if rotates else key[head, t] for t in inner])
        rows = plain - plain.mean(0)
        if sketch:
            drawn = torch.randn(DIM, sketch, generator=torch.Generator().manual_seed(0))  # layer 0 of seed 0
            rows = rows @ drawn.double() / math.sqrt(sketch)
        inverse = (rows.T @ rows + 0.01 * torch.eye(rows.shape[1], dtype=torch.float64)).inverse()
        received = dict.fromkeys(inner, 0.0)
        for place, token in enumerate(inner):
            leverage[head, token] = float(rows[place] @ inverse @ rows[place])
            around = inner[place - place % chunk : place - place % chunk + chunk]
            for number in range(head * GROUP, (head + 1) * GROUP):
                logit = {o: float(query[number, token] @ key[head, o]) / math.sqrt(DIM) for o in around}
                total = sum(math.exp(each) for each in logit.values())
                for other, each in logit.items():
                    received[other] += math.exp(each) / total / GROUP
        weighed = [received[t] * float(value[head, t].norm()) for t in inner]
        for place, token in enumerate(inner):  # kvpress pads with zeros
            attention[head, token] = sum(weighed[max(place - 1, 0) : place + 2]) / 3
    blended = standard(leverage), standard(attention)
    for head in range(HEADS):
        check(layer, head, {t: blend * blended[0][head, t] + blended[1][head, t] for t in inner}, sinks, recent)
