"""What a prompt's pass takes at its worst moment, method by method and with sliding layers, against the plan."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvlab.core.cache import make_cache
from kvlab.core.methods import make_method
from kvlab.engine.forward import prefill
from kvlab.models.load import LoadedModel, prepare
from kvlab.planning import memory
from kvlab.planning.footprint import Footprint
from tests.families import tiny_model
from tests.planning.allocator import peak_bytes
from tests.planning.test_measured import NOT_TENSORS, work_for

# Heads, KV heads, head_dim, tokens, type: where attention and what a method does with it take more than the rest.
SHAPES = {
    "float32": (16, 2, 32, 1500, torch.float32),
    "bfloat16": (8, 4, 64, 2000, torch.bfloat16),
}
BUDGET = 0.05


def share(model: Any, method: str, tokens: int, **options: Any) -> float:
    """Planned bytes of the prompt's pass, and of reading it again, over those that torch's allocator counted."""
    loaded = LoadedModel(model, None, "tiny")
    ids = torch.randint(3, 90, (1, tokens), generator=torch.Generator().manual_seed(1))

    def run(ids: torch.Tensor) -> None:
        prefill(loaded, make_cache(model, make_method(method, **options), BUDGET if method != "full" else 1.0), ids)

    with torch.inference_mode():
        run(ids[:, :100])  # some tables are made once
        took, _ = peak_bytes(lambda: run(ids))
    held = Footprint.model_validate(make_method(method, **options).footprint(BUDGET))
    phases = memory.phases_of_evaluation(work_for(loaded, tokens), [(method, held, BUDGET)], "cpu", False)
    planned = (sum(part.bytes for part in phase.parts if part.name not in NOT_TENSORS) for phase in phases[:-1])
    return max(planned) / took


METHODS = ["full", "snapkv", "keydiff", "key-norm", "lagkv", "zsmerge", "cam", "kvmerger", "exactmerge", "kvzip"]
IN_BLOCKS = [("keydiff", 128), ("keydiff", 512)]


CASES = [*((method, 0) for method in (*METHODS, "attention-matching")), *IN_BLOCKS]
BOTH = ("full", "snapkv")  # the others in one of the shapes, by turns


@pytest.mark.parametrize(
    ("method", "block", "shape"),
    [
        (method, block, shape)
        for place, (method, block) in enumerate(CASES)
        for at, shape in enumerate(SHAPES)
        if method in BOTH or place % 2 == at
    ],
)
def test_of_each_kind_of_method(shape: str, method: str, block: int) -> None:
    heads, key_value_heads, head_dim, tokens, dtype = SHAPES[shape]
    config = LlamaConfig(
        num_hidden_layers=2, num_attention_heads=heads, num_key_value_heads=key_value_heads, head_dim=head_dim,
        hidden_size=64, intermediate_size=64, vocab_size=300, max_position_embeddings=4096, pad_token_id=0,
    )  # fmt: skip
    model = prepare(LlamaForCausalLM(config).to(dtype).eval())
    options = {"block": block} if block else {}
    assert share(model, method, tokens, **options) == pytest.approx(1.0, abs=0.1)


WINDOWED = [
    *(("gemma3", 64, 3000, 8), ("gemma3", 1024, 1500, 16), ("gemma2", 1024, 1500, 16), ("gpt-oss", 64, 3000, 8)),
    *(("ministral", 1024, 1500, 16), ("ministral in bfloat16", 64, 3000, 8)),
]


@pytest.mark.parametrize(("family", "window", "tokens", "heads"), WINDOWED)
def test_with_sliding_layers(family: str, window: int, tokens: int, heads: int) -> None:
    """Their attention goes by row blocks and their windows are short; logits that no kernel takes are written out."""
    family, _, half = family.partition(" in ")
    own = {"query_pre_attn_scalar": 32} if "gemma" in family else {}
    model = tiny_model(
        family, hidden_size=64, intermediate_size=64, num_attention_heads=heads, head_dim=32, sliding_window=window,
        max_position_embeddings=4096, vocab_size=300,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"], **own,
    )  # fmt: skip
    model = model.to(torch.bfloat16) if half else model
    assert share(prepare(model), "snapkv", tokens) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("family", ["gemma3", "gpt-oss", "llama4"])
def test_a_window_lets_go_of_its_prompt(family: str) -> None:
    """As transformers cuts it, it would hold the memory of all tokens until the next one comes."""
    model = prepare(tiny_model(family))
    cache = make_cache(model, "full")
    with torch.inference_mode():
        model(torch.arange(3, 83)[None], past_key_values=cache)
    slides = [layer for layer in cache.layers if getattr(layer, "is_sliding", False)]
    assert slides
    for layer in slides:
        for states in (layer.keys, layer.values):
            assert states.shape[2] == 7 and states.untyped_storage().nbytes() == states.nbytes
