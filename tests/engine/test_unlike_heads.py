"""Heads of unlike length lie in several tables, and whoever records them looks at those: nothing is joined."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.methods import make_method
from kvlab.engine.recording.recorder import Recorder
from kvlab.models.load import prepare
from kvlab.requests.recording import Recording
from tests.planning.allocator import peak_bytes

TOKENS, STEPS = 600, 3
COMPOSED = {"score": "zsmerge", "allocate": "adakv", "settle": "zsmerge"}  # merges one slot a step, in every head


Watched = tuple[PreTrainedModel, torch.Tensor, Recorder, CompressedCache]


def watched(method: str, options: dict[str, Any], tokens: int) -> Watched:
    """A model of one layer, its prompt of `tokens` and three more, and a recorder with the cache that it watches."""
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=8, head_dim=64,
        hidden_size=64, intermediate_size=64, vocab_size=100, max_position_embeddings=2048,
    )  # fmt: skip
    model, ids = prepare(LlamaForCausalLM(config).eval()), torch.randint(1, 100, (1, tokens + STEPS))
    # Heads that look at little beside heads that do not.
    model.get_decoder().layers[0].self_attn.q_proj.weight.data.mul_(30)
    record = SimpleNamespace(
        recording=Recording(), sliding_layers=(), left_out={}, model=SimpleNamespace(**vars(config))
    )
    writer: Any = SimpleNamespace(
        before_flush=[], record=record, append=lambda *_: None, write_arrays=lambda *_: None, update=lambda **_: None
    )
    recorder = Recorder(writer, "full", tokens, STEPS)
    return model, ids, recorder, make_cache(model, make_method(method, **options), 0.2, observer=recorder)


def steps(method: str, options: dict[str, Any], recorded: bool) -> tuple[int, list[int]]:
    """(bytes of the layer in the end, the most bytes of the prompt's pass and of each decode step)."""
    model, ids, recorder, cache = watched(method, options, TOKENS)
    if not recorded:
        cache = make_cache(model, make_method(method, **options), 0.2)
    most = []
    for first, last in ((0, TOKENS), *((at, at + 1) for at in range(TOKENS, TOKENS + STEPS))):
        peak, _ = peak_bytes(lambda: model(ids[:, first:last], past_key_values=cache, logits_to_keep=1))  # noqa: B023
        most.append(peak)
        if recorded:
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


MERGING = ["zsmerge", "keepkv", "kvmerger", "d2o", "cam"]
TOKEN_BYTES = 2 * 8 * 64 * 4  # of the layer's keys and values


@torch.inference_mode()
@pytest.mark.parametrize("tokens", [200, 1024])
@pytest.mark.parametrize("unlike", [False, True])
@pytest.mark.parametrize("method", MERGING)
def test_a_recorded_decision_about_a_prompt_takes_at_most_one_layer(
    method: str, unlike: bool, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four fifths of a prompt's keys leave as edges at once."""
    options = COMPOSED | {"settle": method} if unlike else {}
    model, ids, recorder, cache = watched("compose" if unlike else method, options, tokens)
    taken, inner = [], recorder.compressed
    monkeypatch.setattr(recorder, "compressed", lambda *given: taken.append(peak_bytes(lambda: inner(*given))[0]))
    model(ids[:, :tokens], past_key_values=cache, logits_to_keep=1)
    head_budgets = cache.compressed_layers()[0].head_budgets
    assert head_budgets is not None and (len(head_budgets.slots.unique()) > 1) == unlike
    layers = [one / (tokens * TOKEN_BYTES) for one in taken]
    assert len(layers) == 1 and layers[0] <= 1, f"{[round(one, 2) for one in layers]} layers"
