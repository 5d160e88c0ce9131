"""Kept positions against a plain slow reference written from the formula."""

from __future__ import annotations

import pytest
import torch

from tests.cache.layers import DIM, HandLayer, draw

TOKENS, BUDGET = 40, 14


def mass_of(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """(H, q, S) eager attention, mean over the group."""
    heads, group = key.shape[1], query.shape[1] // key.shape[1]
    logits = query @ key.repeat_interleave(group, 1).transpose(-1, -2) * DIM**-0.5
    rows, slots = logits.shape[-2:]
    logits = logits.masked_fill(torch.ones(rows, slots).triu(slots - rows + 1).bool(), -torch.inf)
    return torch.softmax(logits, -1)[0].unflatten(0, (heads, group)).mean(1)


def kept(hand: HandLayer, row: int = 0) -> list[list[int]]:
    slots = hand.layer.slots
    assert slots is not None
    return [sorted(p[v].tolist()) for p, v in zip(slots.position[row], slots.valid[row], strict=True)]


def prompt(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return draw(seed, 1, 4, TOKENS, DIM) * 2, draw(seed + 1, 1, 2, TOKENS, DIM), draw(seed + 2, 1, 2, TOKENS, DIM)


def top(score: torch.Tensor, among: range, count: int) -> list[int]:
    return sorted(among, key=lambda position: -score[position].item())[:count]


@pytest.mark.parametrize("method", ["window", "streaming-llm"])
def test_recency_methods(method: str) -> None:
    hand = HandLayer(method, BUDGET)
    hand.feed(*prompt())
    for step in range(5):
        hand.feed(draw(step, 1, 4, 1, DIM), draw(step, 1, 2, 1, DIM), draw(step, 1, 2, 1, DIM))
        seen = TOKENS + step + 1
        sinks = 4 if method == "streaming-llm" else 0
        expected = list(range(sinks)) + list(range(seen - BUDGET + sinks, seen))
        assert kept(hand) == [expected, expected]


def test_h2o_prefill_and_decode() -> None:
    hand, (query, key, value) = HandLayer("h2o", BUDGET), prompt()
    hand.feed(query, key, value)
    score = mass_of(query, key).sum(1)
    keep = [sorted(top(score[h], range(TOKENS - 7), 7) + list(range(TOKENS - 7, TOKENS))) for h in range(2)]
    assert kept(hand) == keep
    for step in range(6):
        new = draw(90 + step, 1, 4, 1, DIM), draw(190 + step, 1, 2, 1, DIM), draw(290 + step, 1, 2, 1, DIM)
        hand.feed(*new)
        key = torch.cat([key, new[1]], 2)
        score = torch.cat([score, torch.zeros(2, 1)], 1)
        for head in range(2):
            alive = torch.tensor([*keep[head], TOKENS + step])
            score[head, alive] += mass_of(new[0], key[:, :, alive])[head, 0]
            recent = TOKENS + step + 1 - 7
            heavy = [position for position in alive.tolist() if position < recent]
            weakest = min(heavy, key=lambda position: score[head, position].item())
            keep[head] = [position for position in alive.tolist() if position != weakest]
        assert kept(hand) == keep


@pytest.mark.parametrize("pooling", ["max", "average"])
def test_snapkv_window(pooling: str) -> None:
    hand, (query, key, value) = HandLayer("snapkv", BUDGET, window=6, kernel=5, pooling=pooling), prompt()
    hand.feed(query, key, value)
    raw = mass_of(query, key)[:, -6:].sum(1)[:, : TOKENS - 6]
    for head in range(2):
        near = [raw[head, max(0, p - 2) : p + 3] for p in range(TOKENS - 6)]
        score = torch.stack([part.max() if pooling == "max" else part.mean() for part in near])
        context = [position for position in kept(hand)[head] if position < TOKENS - 6]
        assert kept(hand)[head] == context + list(range(TOKENS - 6, TOKENS))
        # Max pooling gives neighbours the same score: which of them stays is free, their scores are not.
        best = score[top(score, range(TOKENS - 6), BUDGET - 6)].sort().values
        torch.testing.assert_close(score[context].sort().values, best)
    hand.feed(draw(7, 1, 4, 1, DIM), draw(8, 1, 2, 1, DIM), draw(9, 1, 2, 1, DIM))
    assert all(len(head) == BUDGET + 1 for head in kept(hand)), "SnapKV keeps what is generated"


@pytest.mark.parametrize("edges", ["tokens", "zeros"])
def test_average_pooling_at_the_ends_of_the_text(edges: str) -> None:
    """With zeros a token at an end is divided by the whole kernel, as torch's own padding does; else by its tokens."""
    window, half = 6, 2
    score = HandLayer("snapkv", BUDGET, window=window, kernel=5, pooling="average", edges=edges)
    query, key, value = prompt()
    score.feed(query, key, value)
    raw = mass_of(query, key)[:, -window:].sum(1)[:, : TOKENS - window]
    assert score.layer.slots is not None
    for head in range(2):
        alive = score.layer.slots.valid[0, head]
        found = zip(score.layer.slots.position[0, head][alive], score.layer.slots.score[0, head][alive], strict=True)
        for position, own in ((int(p), float(s)) for p, s in found if p < TOKENS - window):
            near = range(max(0, position - half), min(TOKENS - window, position + half + 1))
            divisor = 5 if edges == "zeros" else len(near)
            assert own == pytest.approx(sum(float(raw[head, p]) for p in near) / divisor, rel=1e-4)
        expected = [
            sum(float(raw[head, p]) for p in range(max(0, j - half), min(TOKENS - window, j + half + 1)))
            / (5 if edges == "zeros" else min(TOKENS - window, j + half + 1) - max(0, j - half))
            for j in range(TOKENS - window)
        ]
        best = sorted(range(TOKENS - window), key=lambda j: -expected[j])[: BUDGET - window]
        assert kept(score)[head] == sorted([*best, *range(TOKENS - window, TOKENS)])


def test_zsmerge_scores_decay() -> None:
    hand, (query, key, value) = HandLayer("zsmerge", BUDGET, decay=0.8, sinks=0, residual=0.1), prompt()
    hand.feed(query, key, value)
    weight = 0.8 ** torch.arange(TOKENS - 1, -1, -1.0)
    score = (mass_of(query, key) * weight[:, None]).sum(1)
    recent = int((BUDGET - 1) * 0.4)
    for head in range(2):
        context = top(score[head], range(TOKENS - recent), BUDGET - 1 - recent)
        expected = sorted(context + list(range(TOKENS - recent, TOKENS)))
        slots = hand.layer.slots
        assert slots is not None
        plain = slots.valid[0, head] & (slots.extra["residual"][0, head] == 0)
        assert sorted(slots.position[0, head][plain].tolist()) == expected


def test_keepkv_keeps_the_highest_predicted_scores() -> None:
    options = {"threshold": 1.0, "sinks": 2, "recent": 0.3, "window": 5, "alpha": 0.7}
    hand, (query, key, value) = HandLayer("keepkv", BUDGET, **options), prompt()
    hand.feed(query, key, value)
    mass = mass_of(query[:, :, -5:], key)
    recent = int(BUDGET * 0.3)
    for head in range(2):
        score = torch.zeros(TOKENS)
        for position in range(TOKENS):
            rows = [r for r in range(5) if TOKENS - 5 + r >= position]
            weights = torch.tensor([0.3 * 0.7 ** (4 - r) for r in rows])
            seen = torch.stack([mass[head, r, position] for r in rows])
            score[position] = (weights * seen).sum() / (1 - 0.7 ** len(rows))
        middle = top(score, range(2, TOKENS - recent), BUDGET - 2 - recent)
        assert kept(hand)[head] == sorted([0, 1, *middle, *range(TOKENS - recent, TOKENS)])


def test_deciding_every_few_steps_stays_inside_the_budget_and_is_deterministic() -> None:
    first, second = (HandLayer("h2o", BUDGET, compress_every=4) for _ in range(2))
    for hand in (first, second):
        hand.feed(*prompt())
        for step in range(9):
            hand.feed(draw(step, 1, 4, 1, DIM), draw(step, 1, 2, 1, DIM), draw(step, 1, 2, 1, DIM))
            assert all(len(head) <= BUDGET for head in kept(hand))
    assert kept(first) == kept(second)
