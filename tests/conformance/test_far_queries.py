"""Queries far on in a text are longer in some models: samples of them are as long as the model's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kvlab.core.attention.layer_handoff import watch_hidden_states
from kvlab.core.attention.queries import position_factor
from kvlab.core.cache import make_cache
from kvlab.core.families import prepare
from tests.families import DEVICE, tiny_model

MODELS: dict[str, dict[str, Any]] = {
    "llama4": {"floor_scale": 4, "attn_scale": 0.5, "no_rope_layers": [0, 0, 0], "layer_types": ["full_attention"] * 3},
    "ministral3": {
        "rope_parameters": {
            **{"rope_type": "default", "rope_theta": 1e4},
            **{"original_max_position_embeddings": 4, "llama_4_scaling_beta": 0.5},
        }
    },
}


@pytest.mark.parametrize("family", MODELS)
def test_projected_queries_are_as_long_as_the_model_s_own_at_every_position(family: str) -> None:
    """Rotation changes no length, so lengths are compared, of each token alone."""
    lab = prepare(tiny_model(family, **MODELS[family]))
    checked: list[int] = []

    class Watcher:
        def attended(self, layer_idx: int, slots: Any, seen: Any, output: Tensor) -> None:
            for place in range(seen.query.shape[2]):
                states = seen.hidden_states[:, place : place + 1]
                here = seen.project_queries(states, torch.tensor([place], device=DEVICE))[:, :, 0]
                torch.testing.assert_close(
                    here.norm(dim=-1), seen.query[:, :, place].norm(dim=-1), rtol=1e-4, atol=1e-4
                )
                checked.append(place)

        def compressed(self, *args: object) -> None: ...

    watch_hidden_states(lab)
    with torch.inference_mode():
        lab(torch.arange(3, 23, device=DEVICE)[None], past_key_values=make_cache(lab, "full", observer=Watcher()))
    assert len(checked) == 3 * 20
    factors = [
        float(position_factor(lab.model.layers[0].self_attn, torch.tensor([p], device=DEVICE))) for p in range(20)
    ]
    assert factors[0] == 1 and factors == sorted(factors) and len(set(factors)) > 3, "and there is a factor to miss"


def test_other_models_have_no_factor() -> None:
    for family in ("llama", "llama4-rotated"):
        module = prepare(tiny_model(family)).model.layers[0].self_attn
        assert position_factor(module, torch.tensor([100_000], device=DEVICE)) is None
