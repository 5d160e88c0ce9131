"""ExpectedAttention against its formula written token by token, and the Gaussian identity it rests on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kvlab.core.contract.rotary import Rotary
from kvlab.core.methods import make_method
from kvlab.core.methods.scorers.expected_attention import moments
from tests.cache.inside import GROUP, HEADS, HIDDEN, Attention, feed, output_part
from tests.cache.layers import DIM, draw
from tests.methods.merging import ROTARY, Layer

TOKENS, BUDGET, AHEAD = 30, 12, 5


def turned(vector: Tensor, position: int) -> Tensor:
    """One vector rotated to a position, pair by pair."""
    half, out = DIM // 2, vector.clone()
    for i in range(half):
        angle = position * float(ROTARY.inverse_frequencies[i])
        a, b = float(vector[i]), float(vector[i + half])
        out[i], out[i + half] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
    return out


def ahead(vector: Tensor, tokens: int) -> Tensor:
    return torch.stack([turned(vector, tokens + step) for step in range(AHEAD)]).mean(0)


def expected_scores(
    queries: dict[int, Tensor], keys: dict[int, Tensor], weight: dict[int, list[float]], tokens: int, sinks: int,
    rotates: bool, covariance: bool = True, epsilon: float = 0.0,
) -> dict[int, float]:  # fmt: skip
    """Of one KV head: `queries` {query head: (n, d)}, `keys` by token, `weight` of each token by query head."""
    score = dict.fromkeys(keys, 0.0)
    for number, asked in enumerate(queries.values()):
        mean = asked.double().mean(0)
        matrix = sum(torch.outer(q.double() - mean, q.double() - mean) for q in asked) / len(asked)
        if rotates:
            mean = ahead(mean, tokens)
            matrix = torch.stack([ahead(row, tokens) for row in matrix])  # C R'
            matrix = torch.stack([ahead(column, tokens) for column in matrix.T]).T  # R C R'
        logit = {}
        for token, key in keys.items():
            k = key.double()
            logit[token] = float(mean @ k) / math.sqrt(DIM)
            if covariance:
                logit[token] += float(k @ matrix @ k) / (2 * DIM)
        top = max(logit.values())
        total = sum(math.exp(each - top) for each in logit.values())
        for token, each in logit.items():
            score[token] += (math.exp(each - top) / total + epsilon) * weight[token][number] / GROUP
    assert sinks <= min(keys)
    return score


def run(rotary: Rotary | None, **options: object) -> tuple[Layer, Attention, Tensor, Tensor, Tensor]:
    method = make_method("expected-attention", n_future=AHEAD, **options)
    layer, module, states = Layer(method, BUDGET, rotary), Attention(), draw(7, 1, TOKENS, HIDDEN)
    states[:, 0] *= 30  # the sink's state must not count
    key, value = draw(8, 1, HEADS, TOKENS, DIM), draw(9, 1, HEADS, TOKENS, DIM) * draw(10, 1, HEADS, TOKENS, 1).exp()
    feed(layer, module, states, draw(11, 1, HEADS * GROUP, TOKENS, DIM), key, value)
    return layer, module, states, key, value


@pytest.mark.parametrize("rotates", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"sinks": 2}, {"weight": "output"}, {"weight": "none", "covariance": False}, {"epsilon": 0.05}],
    ids=str,
)
def test_keeps_what_the_closed_form_says(options: dict, rotates: bool) -> None:
    layer, module, states, key, value = run(ROTARY if rotates else None, **options)
    sinks = options.get("sinks", 4)
    with torch.no_grad():
        query = module.q_proj(states)[0].unflatten(-1, (HEADS * GROUP, DIM))  # (T, Hq, d)
    for head in range(HEADS):
        mine = range(head * GROUP, (head + 1) * GROUP)
        weight: dict[int, list[float]] = {}
        for token in range(sinks, TOKENS):
            v = value[0, head, token]
            parts = {"value": [float(v.norm())] * GROUP, "none": [1.0] * GROUP}
            parts["output"] = [float(output_part(module, h, v).norm()) for h in mine]
            weight[token] = parts[options.get("weight", "value")]
        score = expected_scores(
            {h: query[sinks:, h] for h in mine}, {t: key[0, head, t] for t in range(sinks, TOKENS)}, weight, TOKENS,
            sinks, rotates, options.get("covariance", True), options.get("epsilon", 0.0),
        )  # fmt: skip
        best = sorted(range(sinks, TOKENS - 1), key=lambda token: -score[token])[: BUDGET - sinks - 1]
        assert sorted(layer.table(head)) == sorted([*range(sinks), *best, TOKENS - 1])
        for token, slot in layer.table(head).items():
            if token >= sinks:
                assert float(slot["score"]) == pytest.approx(score[token], rel=1e-3)


def test_the_closed_form_is_the_mean_over_gaussian_queries() -> None:
    """E exp(q.k) by drawing queries, which knows nothing of the formula."""
    sample, mask = (
        draw(3, 1, 1, 200, DIM) @ draw(4, DIM, DIM) * 0.3 + draw(5, DIM) * 0.3,
        torch.ones(1, 1, 200, 1).bool(),
    )
    mean, covariance = moments(
        lambda: iter([(sample[:, :, :50], mask[:, :, :50]), (sample[:, :, 50:], mask[:, :, 50:])])
    )
    drawn = torch.distributions.MultivariateNormal(mean[0, 0, 0], covariance[0, 0]).sample((400_000,))
    keys = draw(6, 5, DIM) * 0.5
    closed = (keys @ mean[0, 0, 0] + ((keys @ covariance[0, 0]) * keys).sum(-1) / 2).exp()
    assert torch.allclose((drawn @ keys.T).exp().mean(0), closed, rtol=0.05)


def test_masked_queries_do_not_count() -> None:
    sample, mask = draw(3, 2, 2, 20, DIM), torch.ones(2, 1, 20, 1).bool()
    mask[1, :, :7] = False
    noisy = sample.clone()
    noisy[1, :, :7] = torch.nan
    mean, covariance = moments(lambda: iter([(noisy, mask)]))
    alone = moments(lambda: iter([(sample[1:, :, 7:], mask[1:, :, 7:])]))
    torch.testing.assert_close(mean[1:], alone[0])
    torch.testing.assert_close(covariance[1:], alone[1])


def test_while_decoding_the_newest_queries_are_the_sample() -> None:
    layer, module, *_ = run(ROTARY, decode="budget", buffer=3)
    kept = [sorted(layer.table(head)) for head in range(HEADS)]
    asked: list[Tensor] = []
    prompt_queries = draw(11, 1, HEADS * GROUP, TOKENS, DIM)
    for step in range(3):
        query, key, value = (draw(60 + 3 * step + n, 1, heads, 1, DIM) for n, heads in enumerate((4, 2, 2)))
        asked.append(query)
        before = [layer.table(head) for head in range(HEADS)]
        feed(layer, module, draw(50, 1, 1, HIDDEN), query, key, value)
        for head in range(HEADS):
            before[head][TOKENS + step] = {"key": key[0, head, 0], "value": value[0, head, 0]}
        if step < 2:
            assert [sorted(layer.table(head)) for head in range(HEADS)] == [
                [*k, *range(TOKENS, TOKENS + step + 1)] for k in kept
            ]
    queries = torch.cat([prompt_queries, *asked], 2)[0]  # as asked: at positions 0 .. TOKENS + 2
    for head in range(HEADS):
        plain = {
            h: torch.stack([turned(queries[h, t], -t) for t in range(4, TOKENS + 3)])
            for h in range(head * GROUP, (head + 1) * GROUP)
        }
        slots = {t: slot for t, slot in before[head].items() if t >= 4}
        weight = {t: [float(slot["value"].norm())] * GROUP for t, slot in slots.items()}
        score = expected_scores(plain, {t: s["key"] for t, s in slots.items()}, weight, TOKENS + 3, 4, True)
        best = sorted((t for t in slots if t < TOKENS + 2), key=lambda t: -score[t])[: BUDGET - 5]
        assert sorted(layer.table(head)) == sorted([*range(4), *best, TOKENS + 2])
