"""A pass that caches share equals a pass alone: kept slots, votes, log masses and logits, in every family.

The model is in float64, because a product over more rows of a batch rounds differently; so equality is exact to the
last digits, and what is kept is the same. In float32 the largest difference of logits is bounded.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.fan_out_cache import FanOutCache, shares_passes
from kvlab.core.methods import make_method
from kvlab.models.load import prepare
from tests.conformance.test_matrix import COMPRESSIBLE, PROMPT, SHARED, STEPS, batch
from tests.families import DEVICE, cache_for, tiny_model

# Attention is in float32, and on a GPU its rounding depends on the number of rows.
CLOSE = 1e-6 if DEVICE.type == "cpu" else 1e-4

FEW_STEPS = 2  # where every step decides; STEPS where decisions wait for others
VARIANTS: list[tuple[str, float | int | str, dict[str, Any]]] = [
    ("h2o", 0.25, {}),
    ("h2o", 0.5, {}),
    ("snapkv", 9, {"store": "kivi4"}),
    ("keepkv", 0.4, {"compress_every": 3}),
    ("keepkv", 0.4, {"preset": "paper"}),
    ("adakv", 0.4, {}),
    ("zsmerge", "60%B", {}),
    ("kvzip", 0.3, {}),
    ("exactmerge2", 0.3, {}),
    ("attention-matching", 0.3, {}),
    ("d2o", 0.4, {}),
    ("gvote", 1.0, {}),
    ("packed", 1.0, {"store": "fp8"}),
]


@lru_cache(maxsize=1)
def model_of(family: str, dtype: torch.dtype) -> PreTrainedModel:
    return prepare(tiny_model(family, torch.float32)).to(dtype)


def step(model: PreTrainedModel, cache: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Logits (rows, V) after the newest of `mask`'s tokens."""
    place = (mask.cumsum(-1) - 1)[:, -ids.shape[1] :].clamp_min(0)
    given = {"position_ids": place} if model.config.get_text_config().model_type not in ("bloom", "mpt") else {}
    return model(ids, attention_mask=mask, past_key_values=cache, use_cache=True, **given).logits[:, -1].double()


def forced(rows: int, steps: int) -> list[Tensor]:
    draws = (torch.Generator().manual_seed(index) for index in range(steps))
    return [torch.randint(3, 97, (rows, 1), generator=draw).to(DEVICE) for draw in draws]


@torch.inference_mode()
def alone(model: PreTrainedModel, cache: CompressedCache, steps: int = STEPS) -> Tensor:
    ids, mask = batch()
    logits = [step(model, cache, ids, mask)]
    for tokens in forced(len(ids), steps):
        mask = torch.cat([mask, torch.ones_like(tokens)], 1)
        logits.append(step(model, cache, tokens, mask))
    return torch.stack(logits, 1)


@torch.inference_mode()
def together(model: PreTrainedModel, caches: list[CompressedCache], steps: int = STEPS) -> list[Tensor]:
    ids, mask = batch()
    fan_out, count = FanOutCache(caches, ids.device), len(caches)
    first = step(model, fan_out, ids, mask)
    fan_out.copy_recurrent_states()
    fan_out.split()
    rows, mask = [first.repeat(count, 1)], mask.repeat(count, 1)
    for tokens in forced(len(ids), steps):
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
        rows.append(step(model, fan_out, tokens.repeat(count, 1), mask))
    assert [branch.error for branch in fan_out.branches] == [None] * count
    return list(torch.stack(rows, 1).split(len(ids)))


def check(label: str, ours: CompressedCache, theirs: CompressedCache, most: float) -> None:
    """The same slots: positions and votes exactly, numbers within `most`."""
    for one, other in zip(ours.compressed_layers(), theirs.compressed_layers(), strict=True):
        assert [table.slots.position.shape for table in one.tables] == [t.slots.position.shape for t in other.tables]
        assert torch.equal(one.evicted_votes, other.evicted_votes), label
        assert one.peak_bytes == other.peak_bytes and one.table_bytes() == other.table_bytes(), label
        for own, beside in zip(one.tables, other.tables, strict=True):
            first, second = own.whole(), beside.whole()
            assert torch.equal(first.position, second.position), label
            assert torch.equal(first.votes, second.votes), label
            for name in ("log_mass", "keys", "values"):
                mine, beside_it = getattr(first, name), getattr(second, name)
                if isinstance(mine, Tensor):  # packed states are compared by the logits they give
                    live = first.valid if mine.dim() == 3 else first.valid[..., None]
                    pair = (torch.where(live, states, 0) for states in (mine, beside_it))
                    torch.testing.assert_close(*pair, rtol=most, atol=most, msg=label)


# Families with recurrent layers, or with layers that hold a recurrent state beside their slots.
RECURRENT = ("falcon-h1", "zamba2", "lfm2", "olmo-hybrid", "nemotron-h")
FEW = ("full", "h2o", "keepkv", "kvzip", "exactmerge2", "adakv")


@pytest.mark.parametrize("family", [*COMPRESSIBLE, *RECURRENT])
def test_every_method_together_equals_each_alone(family: str) -> None:
    """The pairs that test_matrix.py does not take as a padded batch; all of them in `make conformance`."""
    model = model_of(family, torch.float64)
    methods = FEW if family in RECURRENT else [method for method, pair_family in SHARED if pair_family == family]
    sharing = [method for method in methods if shares_passes(cache_for(model, method, 0.4))]
    caches = [cache_for(model, method, 0.4) for method in sharing]
    logits = together(model, caches, FEW_STEPS)
    for method, cache, given in zip(sharing, caches, logits, strict=True):
        own = cache_for(model, method, 0.4)
        expected = alone(model, own, FEW_STEPS)
        torch.testing.assert_close(given, expected, rtol=CLOSE, atol=CLOSE, msg=f"{family} {method}")
        check(f"{family} {method}", cache, own, CLOSE)


def made(model: PreTrainedModel, name: str, budget: float | int | str, options: dict[str, Any]) -> CompressedCache:
    own = {key: value for key, value in options.items() if key != "compress_every"}
    return make_cache(model, make_method(name, **own), budget, compress_every=options.get("compress_every", 1))


@pytest.mark.parametrize("family", ["llama", "gemma2", "falcon-alibi"])
def test_budgets_stores_and_settings_together_equal_each_alone(family: str) -> None:
    """Two budgets of one method share its scores; packed and ragged tables, byte budgets and second passes."""
    model = model_of(family, torch.float64)
    caches = [made(model, *variant) for variant in VARIANTS]
    logits = together(model, caches)
    for variant, cache, given in zip(VARIANTS, caches, logits, strict=True):
        own = made(model, *variant)
        expected = alone(model, own)
        torch.testing.assert_close(given, expected, rtol=CLOSE, atol=CLOSE, msg=f"{family} {variant}")
        check(f"{family} {variant}", cache, own, CLOSE)


def test_in_float32_rounding_alone_differs() -> None:
    model = model_of("llama", torch.float32)
    caches = [made(model, *variant) for variant in VARIANTS]
    logits = together(model, caches)
    for variant, given in zip(VARIANTS, logits, strict=True):
        expected = alone(model, made(model, *variant))
        assert (given - expected).abs().max() < 1e-3, variant


@torch.inference_mode()
def test_a_prompt_in_chunks_is_shared_too() -> None:
    model = model_of("llama", torch.float64)
    ids = batch()[0][:1]
    options = {"full": {}, "h2o": {}, "snapkv": {"window": 4}, "tova": {}, "kvzip": {}}
    whole, parts = ([make_cache(model, name, 0.4, **own) for name, own in options.items()] for _ in range(2))
    for caches, chunk in ((whole, None), (parts, 16)):
        fan_out, start = FanOutCache(caches, ids.device), 0
        for size in fan_out.expect(PROMPT, chunk):
            model(ids[:, start : start + size], past_key_values=fan_out, use_cache=True)
            start += size
        assert not any(branch.error for branch in fan_out.branches)
    for name, one, other in zip(options, whole, parts, strict=True):
        for pair in zip(one.compressed_layers(), other.compressed_layers(), strict=True):
            first, second = (layer.slots.position.masked_fill(~layer.slots.valid, -1).sort(-1).values for layer in pair)
            assert torch.equal(first[..., -10:], second[..., -10:]), name
