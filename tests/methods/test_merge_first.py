"""KeepKV's prefill order: merging what can be merged before anything is evicted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cache.layers import DIM, HandLayer, draw

OPTIONS = {"threshold": 0.95, "sinks": 1, "recent": 0.3}


def prompt_in_pairs(seed: int, pairs: int, single: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(1, 2, tokens, d) keys of which the first 2 * `pairs` are twins and the rest nearly orthogonal, and values."""
    directions = torch.linalg.qr(draw(seed, 2, 64, 64)).Q[None, :, : pairs + single]
    keys = torch.cat([directions[:, :, :pairs].repeat_interleave(2, 2), directions[:, :, pairs:]], 2)
    return 3 * keys, draw(seed + 1, *keys.shape)


def fill(budget: int, keys: torch.Tensor, values: torch.Tensor, seed: int, order: str, **options: float) -> HandLayer:
    hand = HandLayer("keepkv", budget, prefill_order=order, **(OPTIONS | options))
    hand.feed(draw(seed + 2, 1, 4, *keys.shape[2:]), keys, values)
    return hand


@pytest.mark.parametrize("order", ["evict-first", "merge-first"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), budget=st.integers(14, 24))
def test_the_budget_is_kept_and_no_votes_are_invented(order: str, seed: int, budget: int) -> None:
    keys, values = prompt_in_pairs(seed, 8, 9)
    layer = fill(budget, keys, values, seed, order).layer
    assert layer.slots is not None
    assert (layer.slots.live() == budget).all()
    votes = layer.slots.votes.masked_fill(~layer.slots.valid, 0).sum(-1).float()
    torch.testing.assert_close(votes + layer.evicted_votes, torch.full_like(votes, keys.shape[2]))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000))
def test_nothing_is_evicted_while_there_are_twins_to_merge(seed: int) -> None:
    """Eight pairs of twins and four slots too many: four merges, no eviction."""
    keys, values = prompt_in_pairs(seed, 8, 9)
    budget = keys.shape[2] - 4
    merged = fill(budget, keys, values, seed, "merge-first").layer
    assert (merged.evicted_votes == 0).all()
    usual = fill(budget, keys, values, seed, "evict-first").layer
    assert (merged.evicted_votes <= usual.evicted_votes).all()


def test_the_usual_order_does_evict() -> None:
    """So that the property above can fail."""
    dropped = [
        fill(21, *prompt_in_pairs(seed, 8, 9), seed, "evict-first").layer.evicted_votes.sum() for seed in range(5)
    ]
    assert sum(dropped) > 0


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_without_similar_keys_both_orders_keep_the_same(seed: int) -> None:
    keys, values = prompt_in_pairs(seed, 0, 24)
    one, other = (fill(12, keys, values, seed, order).layer.slots for order in ("evict-first", "merge-first"))
    assert one is not None and other is not None
    for a, b in zip(one.position[0], other.position[0], strict=True):
        assert sorted(a.tolist()) == sorted(b.tolist())


def test_decoding_is_as_usual() -> None:
    """From the same table one step leaves the same slots."""
    keys, values = prompt_in_pairs(3, 0, 20)
    tables = []
    for order in ("evict-first", "merge-first"):
        hand = fill(20, keys, values, 3, order)
        new = 3 * draw(9, 1, 2, 1, DIM)
        if new.shape[-1] != keys.shape[-1]:
            new = torch.nn.functional.pad(new, (0, keys.shape[-1] - new.shape[-1]))
        hand.feed(draw(8, 1, 4, 1, keys.shape[-1]), new, draw(10, *new.shape))
        assert hand.layer.slots is not None
        tables.append(hand.layer.slots.position[hand.layer.slots.valid].sort().values)
    torch.testing.assert_close(*tables)
