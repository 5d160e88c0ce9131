"""Merges of a context: owners against votes, and shares of heads that hold a token against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.core.cache import make_cache
from kvlab.core.choice import FULL
from kvlab.engine.forward import decode_one, prefill
from kvlab.live.branch import ContextMerges, LiveBranch
from kvlab.models.load import load_model

TOKENS = 64
OPTIONS = {"keepkv": {"threshold": -1.0}, "pyramid-pool": {"pooling": "mean"}}  # a random model's keys are unlike


@pytest.fixture(scope="module")
def lab(tiny_model_folder):
    return load_model(str(tiny_model_folder))


def compressed(lab, method: str):
    """A cache that has compressed random tokens, and what its observer saw."""
    merges = ContextMerges(TOKENS)
    cache = make_cache(lab, method, 16, seed=3, observer=merges, **OPTIONS.get(method, {}))
    prefill(lab, cache, torch.randint(3, 200, (1, TOKENS), generator=torch.Generator().manual_seed(0)))
    cache.settings.observer = None
    return cache, merges


@pytest.mark.parametrize("method", ["kvmerger", "keepkv", "pyramid-pool"])
def test_a_slot_has_as_many_votes_as_tokens_that_it_owns(lab, method: str):
    cache, merges = compressed(lab, method)
    merging = 0
    for layer in cache.compressed_layers():
        slots, owners = layer.slots, merges.owners.get(layer.layer_idx)
        if owners is None:
            continue
        for head in range(slots.valid.shape[1]):
            valid = slots.valid[0, head]
            owned = torch.bincount(owners[head], minlength=TOKENS)
            place = slots.position[0, head][valid].long()
            torch.testing.assert_close(slots.votes[0, head][valid].float(), owned[place].float(), rtol=0, atol=1e-4)
            merging += int((owned[place] > 1).sum())
    assert merging > 0


@pytest.mark.parametrize("method", ["kvmerger", "keepkv", "h2o"])
def test_shares_are_counts_over_heads(lab, method: str):
    cache, merges = compressed(lab, method)
    for token in (5, 6, 7):
        decode_one(lab, cache, torch.tensor(token))
    shares = LiveBranch(FULL, cache, merges).context_shares()
    own, merged, heads = np.zeros(TOKENS), np.zeros(TOKENS), 0
    for layer in cache.compressed_layers():
        for head in range(layer.slots.valid.shape[1]):
            heads += 1
            held = set(layer.slots.position[0, head][layer.slots.valid[0, head]].tolist())
            for token in range(TOKENS):
                owner = int(merges.owners[layer.layer_idx][head, token]) if merges.owners else token
                own[token] += token in held
                merged[token] += token not in held and owner in held
    assert np.allclose(shares.own_slots, own / heads)
    assert np.allclose(shares.merged, merged / heads)
    assert (merged.sum() == 0) == (method == "h2o")


def test_the_owner_of_most_heads_is_named():
    merges = ContextMerges(4)
    merges.owners = {0: torch.tensor([[0, 0, 2, 3], [0, 2, 2, 3]]), 1: torch.tensor([[0, 2, 2, 3]])}
    assert merges.most_common_owners().tolist() == [-1, 2, -1, -1]
