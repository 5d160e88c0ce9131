"""ChunkKV against its rule, chunk by chunk."""

from __future__ import annotations

import pytest
import torch

from kvlab.methods import make_method
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
