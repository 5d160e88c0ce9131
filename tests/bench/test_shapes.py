"""Shapes are the real architectures, scaled without changing what a slot costs."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvlab.bench.competitors import Load
from kvlab.bench.models import BenchModel, open_model
from kvlab.bench.modes.prefill import prompt_flops
from kvlab.core.errors import UserError
from kvlab.models.info.size import SHAPES, find_shape

PARAMETERS = {  # as their makers count them, in thousands of millions
    "llama2-7b": 6.738,
    "llama2-13b": 13.016,
    "llama3-8b": 8.030,
    "mistral-7b": 7.248,
    "qwen2.5-7b": 7.616,
    "qwen3-8b": 8.191,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(find_shape(name).config())
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(PARAMETERS[name], abs=0.001)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("scale", [2, 8, 32])
def test_scaling_keeps_the_head_and_the_group(name: str, scale: int) -> None:
    whole, small = find_shape(name), find_shape(name, scale)
    assert small.head_dim == whole.head_dim
    assert (
        small.num_attention_heads // small.num_key_value_heads == whole.num_attention_heads // whole.num_key_value_heads
    )
    assert small.num_hidden_layers == max(1, whole.num_hidden_layers // scale)
    assert small.hidden_size <= whole.hidden_size


def test_random_weights_are_sound_in_any_type() -> None:
    for dtype in ("float32", "bfloat16"):
        found = open_model("shape:qwen2.5-7b", scale=32, device="cpu", dtype=dtype)
        assert str(found.dtype) == f"torch.{dtype}"
        assert all(p.dtype == found.dtype and p.isfinite().all() for p in found.model.parameters())
        with torch.inference_mode():
            logits = found.model(torch.tensor([[1, 5, 9]])).logits
        assert logits.isfinite().all()
        assert logits.float().std() > 0


def test_the_same_seed_gives_the_same_weights() -> None:
    one, two, other = (open_model("shape:tiny", device="cpu", seed=seed).model.lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_bytes_and_operations_of_a_model(tiny: BenchModel) -> None:
    weights = {name: p.numel() for name, p in tiny.model.named_parameters()}
    embedding = weights["model.embed_tokens.weight"]
    assert tiny.weight_bytes == 4 * sum(weights.values())
    assert tiny.bytes_per_pass == tiny.weight_bytes - 4 * embedding
    assert tiny.token_bytes == 2 * 2 * 2 * 16 * 4
    matrices = sum(n for name, n in weights.items() if "proj" in name)
    expected = 2 * matrices * 10 + 2 * weights["lm_head.weight"] + 2 * 2 * 4 * 16 * 10**2
    assert prompt_flops(tiny, Load(3, 10)) == 3 * expected


def test_an_unknown_shape_is_one_sentence() -> None:
    with pytest.raises(UserError, match="no shape 'llama9'; choose one of tiny"):
        open_model("shape:llama9", device="cpu")
