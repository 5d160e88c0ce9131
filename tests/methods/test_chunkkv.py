"""ChunkKV against its rule, chunk by chunk."""

from __future__ import annotations

import math

import pytest
import torch

from kvlab.core.methods import make_method
from tests.cache.layers import HandLayer
from tests.methods.merging import Layer
from tests.methods.test_selection import TOKENS, kept, mass_of, prompt

WINDOW = 3


@pytest.mark.parametrize(("length", "budget"), [(5, 18), (5, 16), (4, 11), (1, 14), (50, 14), (7, 3)])
def test_the_best_chunks_stay_whole(length: int, budget: int) -> None:
    hand, (query, key, value) = HandLayer("chunkkv", budget, window=WINDOW, length=length), prompt()
    hand.feed(query, key, value)
    mass = mass_of(query, key)[:, -WINDOW:].sum(1).sum(0)  # over both heads
    mass[TOKENS - WINDOW :] = 0  # the window does not judge itself
    chunks = [range(begin, min(begin + length, TOKENS)) for begin in range(0, TOKENS, length)]
    expected = list(range(TOKENS - WINDOW, TOKENS))
    for chunk in sorted(chunks, key=lambda chunk: -float(sum(mass[t] for t in chunk)) / len(chunk)):
        old = sorted((t for t in chunk if t < TOKENS - WINDOW), key=lambda t: -float(mass[t]))
        expected += old[: budget - len(expected)]  # the last one in part, its best tokens
    assert kept(hand) == [sorted(expected[:budget])] * 2


def test_heads_keep_the_same_and_a_padded_row_its_own() -> None:
    query, key, value = (torch.cat([first, second]) for first, second in zip(prompt(), prompt(40), strict=True))
    padding = torch.ones(2, TOKENS, dtype=torch.bool)
    padding[1, :11] = False
    both, alone = (Layer(make_method("chunkkv", window=WINDOW, length=5), 14) for _ in range(2))
    both.feed(query, key, value, padding)
    alone.feed(query[1:, :, 11:], key[1:, :, 11:], value[1:, :, 11:])
    assert sorted(both.table(0, 1)) == sorted(both.table(1, 1)) == sorted(alone.table(0))


def entropy(scores: list[float]) -> float:
    """Of the scores as shares of their sum, over its maximum."""
    if len(scores) == 1:
        return 0.0
    shares = [score / (sum(scores) + 1e-8) for score in scores]
    return -sum(share * math.log(share + 1e-8) for share in shares) / math.log(len(scores))


@pytest.mark.parametrize(("length", "few", "budget"), [(5, 2, 18), (4, 1, 12), (8, 3, 20), (7, 2, 30), (50, 4, 14)])
def test_important_chunks_with_few_high_scores_keep_only_those(length: int, few: int, budget: int) -> None:
    """kvpress's greedy pass: whole chunks, best first; of gated ones their best tokens; then the best that are left."""
    options = {"window": WINDOW, "length": length, "few": few}
    hand, (query, key, value) = HandLayer("entropy-gated-chunkkv", budget, **options), prompt()
    query[:, :, -WINDOW:] *= 2  # so that some chunks have one token that gets most of the attention
    hand.feed(query, key, value)
    mass = mass_of(query, key)[:, -WINDOW:].sum(1).sum(0)
    mass[TOKENS - WINDOW :] = 0
    score = mass.tolist()
    chunks = [list(range(begin, min(begin + length, TOKENS))) for begin in range(0, TOKENS, length)]
    means = [sum(score[t] for t in chunk) / len(chunk) for chunk in chunks]
    spread = [entropy([score[t] for t in chunk]) for chunk in chunks]
    middle = (len(chunks) - 1) // 2
    kept_now, gates = list(range(TOKENS - WINDOW, TOKENS)), 0
    for number in sorted(range(len(chunks)), key=lambda number: -means[number]):
        old = sorted((t for t in chunks[number] if t < TOKENS - WINDOW), key=lambda t: -score[t])
        if means[number] >= sorted(means)[middle] and spread[number] < sorted(spread)[middle]:
            old, gates = old[:few], gates + 1
        kept_now += old[: budget - len(kept_now)]
    rest = sorted((t for t in range(TOKENS) if t not in kept_now), key=lambda t: -score[t])
    kept_now += rest[: budget - len(kept_now)]
    assert kept(hand) == [sorted(kept_now)] * 2
    assert gates or len(chunks) < 3
