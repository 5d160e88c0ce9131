"""A padded batch: each row gets the budgets, and keeps the tokens, that it would alone."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from kvlab.core.cache import make_cache
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.models.load import prepare
from tests.conformance.test_matrix import COMPRESSIBLE
from tests.families import tiny_model

WINDOW = 4


def after_prompt(
    model: PreTrainedModel, method: str, ids: torch.Tensor, mask: torch.Tensor, **options: object
) -> list[CompressedLayer]:
    cache = make_cache(model, method, 0.4, **options)
    with torch.inference_mode():
        model(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0), past_key_values=cache)
    return cache.compressed_layers()


def kept(layer: CompressedLayer, row: int) -> list[list[int]]:
    assert layer.slots is not None
    return [sorted(p[v].tolist()) for p, v in zip(layer.slots.position[row], layer.slots.valid[row], strict=True)]


METHODS = [
    ("snapkv", {"window": WINDOW}),
    ("pyramidkv", {"window": WINDOW}),
    ("pyramidkv", {"window": WINDOW, "variant": "code", "beta": 5}),
    ("adakv", {"window": WINDOW}),
    ("adakv", {"window": WINDOW, "floor_rule": "guarantee", "normalize": True}),
    ("adakv", {"window": WINDOW, "pyramid": True, "skip": 1}),
    ("pyramidinfer", {"ratio": 0.3}),
    ("pyramidinfer", {"decode": "keep", "heads": "each", "schedule": "direct", "ratio": 0.3}),
]


@pytest.mark.parametrize("family", COMPRESSIBLE)
def test_padded_rows_get_what_they_would_alone(family: str) -> None:
    """The same budgets and the same kept positions, and over the layers exactly what was asked."""
    model = prepare(tiny_model(family))
    ids = torch.randint(3, 97, (2, 40), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    for method, options in METHODS:
        layers = after_prompt(model, method, ids * mask, mask, **options)
        for row, skip in ((0, 0), (1, 11)):
            alone = after_prompt(model, method, ids[row : row + 1, skip:], mask[row : row + 1, skip:], **options)
            for together, single in zip(layers, alone, strict=True):
                assert together.budget[row].tolist() == single.budget[0].tolist(), method
                assert kept(together, row) == kept(single, 0), method
            if len(layers) == model.config.num_hidden_layers:
                heads = [head for layer in layers for head in kept(layer, row)]
                assert sum(map(len, heads)) == int(0.4 * (40 - skip)) * len(heads), method


def test_a_mask_that_hides_nothing_costs_no_bias() -> None:
    """The table stays dense, so that attention is the fused one; with padding it is not."""
    model = prepare(tiny_model("llama"))
    ids = torch.randint(3, 97, (2, 40), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for hidden in (0, 5):
        mask[1, :hidden] = 0
        cache = make_cache(model, "snapkv", 1.0, window=WINDOW)
        with torch.inference_mode():
            model(ids, attention_mask=mask, past_key_values=cache)
        assert [table.is_dense for layer in cache.compressed_layers() for table in layer.tables] == [
            hidden == 0 for _ in cache.compressed_layers()
        ]
