"""Decode steps can be captured: recorded once with every host value baked in, their replay gives the same texts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.methods import registered
from kvlab.engine.interleaved_timing import CapturedDecoder
from kvlab.models.load import prepare
from tests.families import DEVICE, ON_ANY_MODEL, tiny_model

# Methods whose tables stop growing; not those that follow the residual stream, whose tensors are new at every step.
FIXED = [
    name
    for name, method in registered().items()
    if method.needs_budget and method().pipeline().decode and name != "compose"
]
GOING_ON = {"decode": "budget", "buffer": 2}  # a period of three steps or so
SHORT_PERIODS = dict.fromkeys(("rkv", "snapkv", "lagkv"), GOING_ON)
CLOSELY = ("zsmerge", "keepkv")  # the others for fewer steps, and a shorter period: each of its steps is recorded
EVERY = [
    *((name, 4 if name in CLOSELY else 2) for name in FIXED),
    ("snapkv", 1),
    ("lagkv", 2),
    ("h2o", 1),
    ("keepkv", 1),
]
PROMPT, STEPS, FEW = 40, 44, 16


def _decoded(model: PreTrainedModel, cache: CompressedCache, captured: bool, steps: int) -> tuple[Tensor, int]:
    """(logits (steps, B, V), how many steps were replays) of a prompt and forced tokens."""
    device = model.device
    kept = []
    with torch.no_grad():
        model((torch.arange(2 * PROMPT).view(2, -1) % 90 + 3).to(device), past_key_values=cache)
        decoder = CapturedDecoder(model, cache)
        if not captured:
            decoder.why_not = "asked for plain steps"
        for step in range(steps):
            kept.append(decoder(torch.full((2, 1), 3 + 7 * step % 90, device=device)).clone())
    return torch.stack(kept), decoder.replayed


@pytest.mark.parametrize(("method", "every"), EVERY)
def test_replayed_steps_give_the_same_logits(method: str, every: int) -> None:
    # One layer has all that a method bakes in; that layers differ is asked with the methods looked at closely.
    model = prepare(tiny_model("llama", num_hidden_layers=2 if method in CLOSELY else 1))
    own = ON_ANY_MODEL.get(method, {}) | SHORT_PERIODS.get(method, {})
    steps = STEPS if method in CLOSELY else FEW
    plain, none = _decoded(model, make_cache(model, method, 0.4, compress_every=every, **own), False, steps)
    cache = make_cache(model, method, 0.4, compress_every=every, **own)
    replayed, count = _decoded(model, cache, True, steps)
    assert none == 0
    assert count > steps - 5 * cache.settings.period, "hardly a step was a replay"
    torch.testing.assert_close(replayed, plain, rtol=1e-4, atol=1e-4)
    assert cache.get_seq_length() == PROMPT + steps
    assert all(layer.lengths == [PROMPT + steps] * 2 for layer in cache.compressed_layers())


def test_rows_of_different_lengths_are_replayed_from_where_they_stand() -> None:
    model = prepare(tiny_model("llama", num_hidden_layers=2))
    mask = torch.ones(2, PROMPT, dtype=torch.int64, device=DEVICE)
    mask[1, :9] = 0
    ids = torch.arange(2 * PROMPT, device=DEVICE).view(2, -1) % 90 + 3
    place = (mask.cumsum(-1) - 1).clamp_min(0)
    logits = []
    for captured in (False, True):
        cache = make_cache(model, "keepkv", 0.4, compress_every=4)
        with torch.no_grad():
            model(ids, attention_mask=mask, position_ids=place, past_key_values=cache)
            decoder = CapturedDecoder(model, cache, place[:, -1:] + 1)
            decoder.why_not = decoder.why_not if captured else "asked for plain steps"
            logits.append(
                torch.stack([decoder(torch.full((2, 1), 3 + 7 * n % 90, device=DEVICE)).clone() for n in range(28)])
            )
        assert (decoder.replayed > 10) is captured
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)


def test_a_table_that_grows_is_not_captured() -> None:
    model = prepare(tiny_model("llama"))
    _, count = _decoded(model, make_cache(model, "snapkv", 0.4), True, 20)
    assert count == 0


def test_a_replaced_table_is_noticed() -> None:
    model = prepare(tiny_model("llama"))
    cache = make_cache(model, "h2o", 0.4)
    token = torch.full((2, 1), 5, device=DEVICE)
    with torch.no_grad():
        model(torch.arange(2 * PROMPT, device=DEVICE).view(2, -1) % 90 + 3, past_key_values=cache)
        decoder = CapturedDecoder(model, cache)
        for _ in range(8):
            decoder(token)
        count = decoder.replayed
        assert count > 0
        cache.reorder_cache(torch.tensor([1, 0], device=DEVICE))
        decoder(token)
        assert decoder.replayed == count, "a graph of the old tables was replayed"


def test_what_cannot_be_captured_says_why() -> None:
    model = prepare(tiny_model("gemma2"))
    with torch.no_grad():
        cache = make_cache(model, "h2o", 0.4)
        model(torch.arange(2 * PROMPT, device=DEVICE).view(2, -1) % 90 + 3, past_key_values=cache)
        decoder = CapturedDecoder(model, cache)
        decoder(torch.full((2, 1), 5, device=DEVICE))
    assert "sliding window" in decoder.why_not
    assert decoder.replayed == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU; none is here")
@pytest.mark.parametrize("method", ["h2o", "zsmerge", "keepkv"])
def test_cuda_graphs_give_the_same_logits(method: str) -> None:
    model = prepare(tiny_model("llama")).to("cuda")
    plain, _ = _decoded(model, make_cache(model, method, 0.4, compress_every=4), False, STEPS)
    decoder_cache = make_cache(model, method, 0.4, compress_every=4)
    replayed, count = _decoded(model, decoder_cache, True, STEPS)
    assert count > STEPS - 32
    torch.testing.assert_close(replayed, plain, rtol=1e-3, atol=1e-3)
