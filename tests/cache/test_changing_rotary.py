"""Models whose rotary frequencies change with the length of the text: dynamic NTK, and longrope with its switch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.errors import UserError
from kvlab.models.load import prepare
from tests.families import tiny_model
from tests.methods.merging import Notes

SWITCH = 32
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.05 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
    "original_max_position_embeddings": SWITCH,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
UNROTATED = [("keepkv", {"threshold": -1.0}), ("zsmerge", {"residual": 0.3}), ("d2o", {})]


def model_with(kind: str, attention: str = "kvlab") -> PreTrainedModel:
    """A tiny model whose frequencies change beyond SWITCH tokens."""
    if kind == "longrope":
        options = {"rope_parameters": dict(LONGROPE), "original_max_position_embeddings": SWITCH}
        model = tiny_model("phi3", max_position_embeddings=128, **options)
    else:
        model = tiny_model("llama", rope_parameters=dict(DYNAMIC), max_position_embeddings=SWITCH)
    return prepare(model) if attention == "kvlab" else model


def ids(count: int, seed: int = 1) -> Tensor:
    return torch.randint(3, 97, (1, count), generator=torch.Generator().manual_seed(seed))


def run(model: PreTrainedModel, cache: CompressedCache, prompt: int, steps: int) -> None:
    with torch.inference_mode():
        model(ids(prompt), past_key_values=cache)
    more(model, cache, steps)


def more(model: PreTrainedModel, cache: CompressedCache, steps: int) -> None:
    with torch.inference_mode():
        for step in range(steps):
            model(ids(1, 50 + step), past_key_values=cache)


def projected_keys(attention: Any, hidden: Tensor) -> Tensor:
    """(1, 2, T, 16) un-rotated keys of Llama, and of Phi-3, whose queries come first in one projection."""
    fused = attention.qkv_proj(hidden)[..., 64:96] if hasattr(attention, "qkv_proj") else attention.k_proj(hidden)
    return fused.unflatten(-1, (2, 16)).transpose(1, 2)


def scaling(model: PreTrainedModel) -> float:
    return next(m.attention_scaling for m in model.modules() if hasattr(m, "attention_scaling"))


def frequencies(model: PreTrainedModel) -> Tensor:
    return next(m.inv_freq for m in model.modules() if hasattr(m, "inv_freq")).clone()


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
@pytest.mark.parametrize("tokens", [24, 48])
def test_a_layer_turns_keys_by_the_frequencies_of_its_own_pass(kind: str, tokens: int) -> None:
    """Keys turned back to position 0 equal the keys the projection made: by the frequencies in use, no others."""
    model, notes = model_with(kind), Notes()
    fresh = frequencies(model)
    seen: dict[str, Tensor] = {}
    attention = next(m for m in model.modules() if hasattr(m, "o_proj") and m.layer_idx == 0)
    attention.register_forward_pre_hook(
        lambda module, args, kwargs: seen.update(hidden=kwargs.get("hidden_states", args[0] if args else None)),
        with_kwargs=True,
    )
    cache = make_cache(model, "kvmerger", 10, space="unrotated", observer=notes)
    run(model, cache, tokens, 0)
    view, _, before, _ = notes.decisions[0]
    with torch.inference_mode():
        plain = projected_keys(attention, seen["hidden"]) * scaling(model)
    assert view.layer_pass.rotary is not None
    torch.testing.assert_close(view.layer_pass.rotary.turn(before.keys, -before.position), plain, rtol=1e-4, atol=1e-4)
    assert torch.equal(frequencies(model), fresh) == (tokens <= SWITCH), "the long case must be another one"


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
@pytest.mark.parametrize(("method", "options"), UNROTATED)
def test_crossing_the_switch_with_unrotated_merging_is_refused(kind: str, method: str, options: dict) -> None:
    model = model_with(kind)
    cache = make_cache(model, method, 10, space="unrotated", **options)
    run(model, cache, SWITCH - 4, 3)
    with pytest.raises(UserError, match="changes its rotary frequencies"):
        more(model, cache, 8)
    run(model, make_cache(model, method, 10, space="rotated", **options), SWITCH - 4, 8)


def test_beyond_the_switch_from_the_start_is_one_set_of_frequencies() -> None:
    """Longrope has one long set; dynamic NTK makes a new one at every step, so it is refused there too."""
    for method, options in UNROTATED:
        run(model_with("longrope"), make_cache(model_with("longrope"), method, 10, space="unrotated", **options), 40, 6)
    model = model_with("dynamic")
    with pytest.raises(UserError, match="changes its rotary frequencies"):
        run(model, make_cache(model, "keepkv", 10, space="unrotated", threshold=-1.0), 40, 6)


def test_positions_inside_the_cache_are_refused_there_too() -> None:
    model = model_with("dynamic")
    with pytest.raises(UserError, match="changes its rotary frequencies"):
        run(model, make_cache(model, "streaming-llm", 10, positions="cache"), SWITCH - 4, 8)


@pytest.mark.parametrize("prompt", [SWITCH - 4, SWITCH + 8])
def test_generate_keeps_the_compressed_cache_across_the_switch(prompt: int) -> None:
    """transformers would put an uncompressed cache in its place when the text outgrows the short frequencies."""
    model = model_with("longrope")
    cache = make_cache(model, "h2o", 10)
    text = ids(prompt)
    output = model.generate(text, past_key_values=cache, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert output.shape[1] == prompt + 8
    assert cache.get_seq_length() == prompt + 7
    assert all((layer.slots.live() <= 10).all() for layer in cache.compressed_layers())


def test_an_ordinary_cache_is_made_again_as_before() -> None:
    """What transformers does for its own caches stays as it is."""
    model, plain = model_with("longrope"), model_with("longrope", "plain")
    text = ids(SWITCH - 4)
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    assert torch.equal(model.generate(text, **options), plain.generate(text, **options))
