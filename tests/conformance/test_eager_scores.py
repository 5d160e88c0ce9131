"""Streamed scores equal what plain transformers' eager attention adds up to, on every family."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from kvlab.core.cache import make_cache
from kvlab.models.load import prepare
from tests.families import DEVICE, FAMILIES, PLAIN, tiny_model

# Eager attention is not what the others compute for ALiBi (see `PLAIN`): tests/attention/test_alibi.py has the formula.
EAGER = [family for family in FAMILIES if family not in PLAIN and family != "mistral-sliding"]
PASSES, PADS = (24, 1, 1, 4, 1), 7


@pytest.mark.parametrize("family", EAGER)
def test_accumulated_scores_are_eager_attentions_column_sums(family: str) -> None:
    plain, lab = tiny_model(family), prepare(tiny_model(family))
    ids = torch.randint(3, 97, (2, sum(PASSES)), generator=torch.Generator().manual_seed(5)).to(DEVICE)
    mask = torch.ones_like(ids)
    mask[1, :PADS] = 0
    ours, theirs, end = make_cache(lab, "h2o", 1.0), DynamicCache(config=plain.config), 0
    expected = {layer.layer_idx: torch.zeros(2, 4, sum(PASSES), device=DEVICE) for layer in ours.compressed_layers()}
    with torch.inference_mode():
        for count in PASSES:
            begun, end = end, end + count
            position = (mask[:, :end].cumsum(-1) - 1)[:, begun:].clamp_min(0)
            given = {"attention_mask": mask[:, :end], "position_ids": position}
            lab(ids[:, begun:end], past_key_values=ours, **given)
            maps = plain(ids[:, begun:end], past_key_values=theirs, output_attentions=True, **given).attentions
            for layer, total in expected.items():
                rows = maps[layer].float() * mask[:, None, begun:end, None]
                total[:, :, :end] += rows.sum(2)
    for layer in ours.compressed_layers():
        slots = layer.slots
        assert slots is not None
        for row in range(2):
            heads = slots.position.shape[1]
            mean = expected[layer.layer_idx][row].unflatten(0, (heads, -1)).mean(1)[:, row * PADS :]
            for head in range(heads):
                valid = slots.valid[row, head]
                order = slots.position[row, head][valid].argsort()
                torch.testing.assert_close(slots.score[row, head][valid][order], mean[head], rtol=1e-4, atol=1e-5)
