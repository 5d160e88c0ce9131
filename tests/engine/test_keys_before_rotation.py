"""Recorded keys with their rotation taken off are the model's own keys, whatever way its family rotates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from kvlab.core.choice import MethodChoice
from kvlab.engine import compare
from kvlab.engine.environment import model_shape
from kvlab.models.load import LoadedModel, load_model, prepare
from kvlab.requests.compare import CompareRequest
from kvlab.trace import open_run
from kvlab.views.frames.head_states import BEFORE, KEYS, head_states
from tests.families import scaled, tiny_model

TEXT = "The old house on the hill."
YARN_OF_A_PART = {**scaled("yarn", attention_factor=1.3)["rope_parameters"], "partial_rotary_factor": 0.5}
# family, changes, and a layer of full attention whose keys depend on nothing but the tokens: the first
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "halves": ("llama", {}),
    "llama3": ("llama-llama3", {}),
    "linear": ("llama-linear", {}),
    "yarn": ("llama-yarn", {}),
    "interleaved": ("cohere", {}),
    "interleaved, a part": ("glm4", {}),
    "interleaved, another part": ("glm", {}),
    "interleaved, ernie": ("ernie4-5", {}),
    "a part": ("phi", {}),
    "a part, normed": ("stablelm", {}),
    "a part, gpt-neox": ("gpt-neox-partial", {}),
    "a part, yarn": ("phi", {"rope_parameters": YARN_OF_A_PART}),
    "some layers": ("smollm3", {"no_rope_layers": [0, 1, 1]}),
}


@pytest.fixture(scope="module")
def tokenizer(tiny_model_folder: Path) -> Any:
    return load_model(str(tiny_model_folder), "cpu").tokenizer


def keys_at_zero(family: str, changes: dict[str, Any], ids: torch.Tensor) -> np.ndarray:
    """(H, T, d) float64 keys of the first layer of plain transformers with every token at position 0: not turned.

    What YaRN lengthens at every position, it lengthens here too.
    """
    cache = DynamicCache()
    with torch.inference_mode():
        model = tiny_model(family, vocab_size=300, **changes)
        model(ids, position_ids=torch.zeros_like(ids), past_key_values=cache)
    return cache.layers[0].keys[0].double().numpy()


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_key_turned_back_is_the_models_own(case: str, tokenizer: Any, tmp_path: Path) -> None:
    family, changes = CASES[case]
    loaded = LoadedModel(prepare(tiny_model(family, vocab_size=300, **changes)), tokenizer, family)
    request = CompareRequest(prompt=TEXT, choices=(MethodChoice(method="full"),), max_new_tokens=2, level="full")
    run = open_run(compare(request, tmp_path, loaded=loaded)[0])
    plain = keys_at_zero(family, changes, loaded.encode(TEXT))
    shape = run.record.model
    assert shape.rotary_inverse_frequencies is not None
    width = 2 * len(shape.rotary_inverse_frequencies) if "yarn" in case else 0
    plain[..., :width] /= 1.3 if case == "a part, yarn" else 1.05
    turned = False
    for head in range(shape.num_key_value_heads):
        states, own = head_states(run, 0, head, plain.shape[1]), plain[head]
        own = own / np.linalg.norm(own, axis=1, keepdims=True)
        np.testing.assert_allclose(states[BEFORE], own, atol=2e-3)  # recorded in half precision
        turned |= bool(np.abs(states[KEYS].astype(np.float64) - own).max() > 0.1)
    assert turned != (case == "some layers"), "a layer that rotates, and one that does not"


def test_frequencies_that_change_with_length_are_not_recorded(tokenizer: Any) -> None:
    for family in ("llama-dynamic", "phi3-longrope"):
        loaded = LoadedModel(prepare(tiny_model(family)), tokenizer, family)
        assert model_shape(loaded).rotary_inverse_frequencies is None
