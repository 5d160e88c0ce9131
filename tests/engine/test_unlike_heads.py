"""Heads of unlike length lie in several tables, and whoever records them looks at those: nothing is joined."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvlab.cache import make_cache
from kvlab.engine.recorder import Recorder
from kvlab.methods import make_method
from kvlab.models.load import prepare
from kvlab.recording import Recording
from tests.planning.allocator import peak_bytes

TOKENS, STEPS = 600, 3
COMPOSED = {"score": "zsmerge", "allocate": "adakv", "settle": "zsmerge"}  # merges one slot a step, in every head


def steps(method: str, options: dict[str, Any], recorded: bool) -> tuple[int, list[int]]:
    """(bytes of the layer in the end, the most bytes of the prompt's pass and of each decode step)."""
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=8, head_dim=64,
        hidden_size=64, intermediate_size=64, vocab_size=100, max_position_embeddings=1024,
    )  # fmt: skip
    model, ids = prepare(LlamaForCausalLM(config).eval()), torch.randint(1, 100, (1, TOKENS + STEPS))
    model.model.layers[0].self_attn.q_proj.weight.data.mul_(30)  # heads that look at little beside heads that do not
    record = SimpleNamespace(
        recording=Recording(), sliding_layers=(), left_out={}, model=SimpleNamespace(**vars(config))
    )
    writer = SimpleNamespace(before_flush=[], record=record, append=lambda *_: None, write_arrays=lambda *_: None)
    recorder = Recorder(writer, "full", TOKENS, STEPS) if recorded else None  # type: ignore[arg-type]
    cache = make_cache(model, make_method(method, **options), 0.2, observer=recorder)
    most = []
    for first, last in ((0, TOKENS), *((at, at + 1) for at in range(TOKENS, TOKENS + STEPS))):
        peak, _ = peak_bytes(lambda: model(ids[:, first:last], past_key_values=cache, logits_to_keep=1))  # noqa: B023
        most.append(peak)
        if recorder is not None:
            recorder.end_step(cache)
    (layer,) = cache.compressed_layers()
    assert len(layer.buckets) > 1, "the example has heads of unlike length"
    return layer.table_bytes(), most


@torch.inference_mode()
@pytest.mark.parametrize(("method", "options"), [("adakv", {}), ("compose", COMPOSED)])
def test_a_recorded_step_takes_at_most_one_compressed_layer_more(method: str, options: dict[str, Any]) -> None:
    layer, bare = steps(method, options, recorded=False)
    _, full = steps(method, options, recorded=True)
    added = [(with_it - without) / layer for with_it, without in zip(full[1:], bare[1:], strict=True)]
    assert max(added) <= 1, f"layers a decode step: {[round(one, 2) for one in added]}"
