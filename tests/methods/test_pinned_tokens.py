"""Chosen tokens never leave, whatever the method; all else still follows the budget."""

from __future__ import annotations

import pytest
import torch

from kvlab.core.cache import make_cache
from kvlab.core.methods.wrappers.choice import keeping
from kvlab.engine.forward import decode_one, prefill
from kvlab.models.load import load_model

METHODS = ("streaming-llm", "h2o", "snapkv", "zsmerge", "kvmerger", "keepkv", "pyramid-pool", "gvote", "d2o", "cam")
CHOSEN = (9, 10, 23, 40)
BUDGET = 16


@pytest.mark.parametrize("method", METHODS)
def test_chosen_tokens_stay_in_every_head_and_the_budget_holds(tiny_model_folder, method: str):
    lab = load_model(str(tiny_model_folder))
    ids = torch.randint(3, 200, (1, 64), generator=torch.Generator().manual_seed(0))
    plain, kept = (make_cache(lab, method, BUDGET) for _ in range(2))
    kept.settings.pipeline = keeping(kept.settings.pipeline, CHOSEN)
    for cache in (plain, kept):
        prefill(lab, cache, ids)
        for token in range(5, 13):
            decode_one(lab, cache, torch.tensor(token))
    dropped_before = False
    for before, layer in zip(plain.compressed_layers(), kept.compressed_layers(), strict=True):
        there = torch.stack([(layer.slots.position == token) & layer.slots.valid for token in CHOSEN]).any(-1)
        own = torch.stack([(before.slots.position == token) & before.slots.valid for token in CHOSEN]).any(-1)
        assert there.all()
        dropped_before |= not own.all()
        assert (layer.slots.live() <= torch.maximum(layer.budget, before.slots.live())).all()
    assert dropped_before, "without keeping them, the method drops some of them"


def test_more_tokens_than_places_keeps_the_first_and_the_newest(tiny_model_folder):
    lab = load_model(str(tiny_model_folder))
    cache = make_cache(lab, "h2o", 4)
    cache.settings.pipeline = keeping(cache.settings.pipeline, tuple(range(10, 30)))
    prefill(lab, cache, torch.randint(3, 200, (1, 64), generator=torch.Generator().manual_seed(0)))
    for layer in cache.compressed_layers():
        for head in range(layer.slots.position.shape[1]):
            alive = layer.slots.position[0, head][layer.slots.valid[0, head]]
            assert sorted(alive.tolist()) == [10, 11, 12, 63]
