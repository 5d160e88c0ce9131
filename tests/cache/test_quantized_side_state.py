"""transformers' own quantised cache beside kvlab's stores: KL to the full cache on real text, at as many bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.cache_utils import QuantizedCache

from kvlab.core.assets import asset_path
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.models.load import LoadedModel, load_model

PROMPT, NEXT, RESIDUAL = 320, 64, 32


@pytest.fixture(scope="module")
def lab() -> LoadedModel:
    return load_model("mini", "cpu")


def divergence(lab: LoadedModel, cache: Any) -> float:
    """Mean KL(full || cache), nats a token, over tokens read in one pass behind a prompt that the cache holds."""
    text = asset_path("prompts/haystack/alice_in_wonderland.txt").read_text(encoding="utf-8")[20_000:24_000]
    ids = lab.encode(text)[:, : PROMPT + NEXT]
    found = []
    with torch.inference_mode():
        for one in (make_cache(lab, "full"), cache):
            if isinstance(one, CompressedCache):
                one.expect(PROMPT)
            lab.model(ids[:, :PROMPT], past_key_values=one, use_cache=True)
            found.append(torch.log_softmax(lab.model(ids[:, PROMPT:], past_key_values=one).logits[0].double(), -1))
    full, other = found
    return float((full.exp() * (full - other)).sum(-1).mean())


def test_eight_bits_are_no_worse_than_transformers_fp8(lab: LoadedModel) -> None:
    """It keeps one scale a tensor, kvlab one a slot; neither loses much."""
    theirs = divergence(lab, QuantizedCache("fp8", lab.model.config))
    ours = divergence(lab, make_cache(lab, "packed", 1.0, store="fp8/sinks=0/residual=1"))
    assert 0 < ours < 1.5 * theirs < 0.05


def test_four_bits_are_no_worse_than_with_quanto(lab: LoadedModel) -> None:
    """Groups of 32; there all numbers of a channel or token at once, here keys by channel and values by token."""
    pytest.importorskip("optimum.quanto", reason="transformers' 4-bit cache needs optimum-quanto: pip install it")
    quanto = {"nbits": 4, "q_group_size": 32, "residual_length": RESIDUAL}
    plain = divergence(lab, QuantizedCache("quanto", lab.model.config, **quanto))
    by_channel = divergence(lab, QuantizedCache("quanto", lab.model.config, axis_key=-1, **quanto))
    ours = divergence(lab, make_cache(lab, "packed", 1.0, store=f"kivi4/sinks=0/residual={RESIDUAL}"))
    print(f"4 bits: quanto as it comes {plain:.4f}, keys by channel {by_channel:.4f}, kivi4 {ours:.4f}")
    assert 0 < ours < 1.5 * min(plain, by_channel)
