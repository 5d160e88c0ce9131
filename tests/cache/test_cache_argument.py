"""The cache is found in a call's arguments whatever they are named: transformers 5.24 renamed `past_key_values`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from kvlab.core.attention.inline_attention import find_cache
from kvlab.core.cache import make_cache
from kvlab.models.load import prepare
from tests.families import tiny_model


@pytest.mark.parametrize("name", ["past_key_values", "cache", "layer_past"])
def test_a_cache_is_found_by_any_name(name: str) -> None:
    given = DynamicCache()
    assert find_cache((), {"input_ids": torch.zeros(1, 2), "use_cache": True, name: given}) is given
    assert find_cache((torch.zeros(1, 2), given), {}) is given
    assert find_cache((), {name: None, "use_cache": True}) is None


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
@pytest.mark.parametrize("method", ["kvzip", "semanticache"])
def test_hooks_see_a_cache_passed_by_either_name(method: str, name: str) -> None:
    """A module that takes the other name is called through one that renames it, as the versions of transformers do."""
    model, ids = prepare(tiny_model("llama")), torch.arange(3, 43)[None]
    plain = make_cache(model, method, 0.4)
    with torch.inference_mode():
        model(ids, past_key_values=plain)
    forward: Any = type(model).forward

    def renamed(*given: Any, **named: Any) -> Any:
        if name in named:
            named["past_key_values"] = named.pop(name)
        return forward(model, *given, **named)

    model.forward = renamed
    ours = make_cache(model, method, 0.4)
    with torch.inference_mode():
        model(ids, **{name: ours})
    for mine, expected in zip(ours.compressed_layers(), plain.compressed_layers(), strict=True):
        assert torch.equal(mine.slots.position, expected.slots.position)


def test_mpt_decodes_after_its_prompt() -> None:
    plain, lab = tiny_model("mpt"), prepare(tiny_model("mpt"))
    ids = torch.randint(3, 97, (1, 20), generator=torch.Generator().manual_seed(1))
    compressed = make_cache(lab, "full")
    with torch.inference_mode():
        expected = plain(ids, use_cache=False).logits[:, -1]
        lab(ids[:, :19], past_key_values=compressed)
        ours = lab(ids[:, 19:], past_key_values=compressed).logits[:, -1]
    assert compressed.get_seq_length() == 20
    assert torch.allclose(ours, expected, atol=1e-4)
