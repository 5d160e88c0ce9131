"""NACL: what stays by score, and how often the others are drawn."""

from __future__ import annotations

import math

import pytest
import torch

from kvlab.core.contract.numerics import uniform_draws
from tests.cache.layers import DIM, HandLayer, draw
from tests.methods.test_selection import BUDGET, TOKENS, kept, mass_of, prompt

WINDOW = 3


@pytest.mark.parametrize(("drawn", "temperature"), [(0.0, 1.0), (0.4, 1.0), (0.4, 0.05), (1.0, 1.0)])
def test_most_by_score_and_the_rest_by_chance(drawn: float, temperature: float) -> None:
    """The best by score; then those with the highest score / temperature + Gumbel noise of the token's own draw."""
    options = {"window": WINDOW, "drawn": drawn, "temperature": temperature}
    hand, (query, key, value) = HandLayer("nacl", BUDGET, **options), prompt()
    hand.feed(query, key, value)
    score = mass_of(query, key)[:, -WINDOW:].sum(1)
    own = uniform_draws(0, torch.arange(TOKENS).expand(1, 2, -1))[0]  # layer 0 of seed 0
    by_chance = min(int(BUDGET * drawn), BUDGET - WINDOW)
    for head in range(2):
        ranked = sorted(range(TOKENS - WINDOW), key=lambda t: -float(score[head, t]))
        best, others = ranked[: BUDGET - WINDOW - by_chance], ranked[BUDGET - WINDOW - by_chance :]
        noise = {t: -math.log(-math.log(float(own[head, t]) + 2**-26)) for t in others}
        lucky = sorted(others, key=lambda t: -(float(score[head, t]) / temperature + noise[t]))[:by_chance]
        assert kept(hand)[head] == sorted([*best, *lucky, *range(TOKENS - WINDOW, TOKENS)])


def test_a_token_is_drawn_as_often_as_its_share_of_the_softmax() -> None:
    """One draw in each of many heads with the same states: four standard deviations."""
    heads, tokens = 4000, 8
    hand = HandLayer("nacl", 2, window=1, drawn=0.5, temperature=0.3)
    query, key = draw(1, 1, 1, tokens, DIM).expand(1, heads, -1, -1), draw(2, 1, 1, tokens, DIM) * 2
    hand.feed(query, key.expand(1, heads, -1, -1), draw(3, 1, heads, tokens, DIM))
    score = mass_of(query[:, :1], key)[0, -1, :-1]
    expected = torch.softmax(score / 0.3, 0)
    assert hand.layer.slots is not None
    position = hand.layer.slots.position[hand.layer.slots.valid].long()
    often = torch.bincount(position, minlength=tokens)[:-1] / heads
    assert ((often - expected).abs() < 4 * (expected * (1 - expected) / heads).sqrt()).all()
