"""Every supported family goes through the door that users use: a folder, loaded by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from kvlab.core.cache import make_cache
from kvlab.models.load import load_model
from tests.families import EVERY, PLAIN, tiny_folder


@pytest.mark.parametrize("family", EVERY)
def test_a_saved_model_loads_and_is_itself(family: str, tmp_path: Path) -> None:
    folder = str(tiny_folder(tmp_path, family))
    loaded = load_model(folder, device="cpu")
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=PLAIN.get(family, "eager")).eval()
    ids = loaded.encode("Down the rabbit hole.")
    with torch.inference_mode():
        expected = plain(ids, past_key_values=DynamicCache(config=plain.config)).logits
        given = loaded.model(ids, past_key_values=make_cache(loaded, "full")).logits
    assert (given - expected).abs().max() < 1e-4
