"""A prompt in chunks gives what the whole prompt gives, or the method says that it cannot."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.chunked_prefill import chunk_sizes
from kvlab.core.errors import UserError
from kvlab.core.methods import registered
from kvlab.engine.forward import decode_one, prefill
from kvlab.models.load import LoadedModel, prepare
from tests.families import cache_for, tiny_model

TOKENS, CHUNK = 150, 40
IN_A_MODEL = ("gvote", "expected-attention", "kvzap", "kvzap-threshold", "fast-kvzip", "lukv", "cap")
REFUSED = dict.fromkeys(IN_A_MODEL, "hidden states of the whole prompt")
REFUSED |= dict.fromkeys(("compactor", "scissorhands", "vase"), "needs the last .* queries")


@cache
def model(family: str = "llama") -> PreTrainedModel:
    return prepare(tiny_model(family))


def prompt() -> tuple[Tensor, Tensor]:
    ids = torch.randint(3, 97, (2, TOKENS), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :47] = 0  # the first chunk of the second row is all padding
    return ids * mask, mask


def run(slots: CompressedCache, chunk: int, family: str = "llama") -> Tensor:
    """Logits of the prompt's last token and of three decode steps."""
    ids, mask = prompt()
    position, end = (mask.cumsum(-1) - 1).clamp_min(0), 0
    with torch.inference_mode():
        for size in slots.expect(TOKENS, chunk):
            begun, end = end, end + size
            given = {"attention_mask": mask[:, :end], "position_ids": position[:, begun:end]}
            logits = [model(family)(ids[:, begun:end], past_key_values=slots, **given).logits[:, -1:]]
        for step in range(3):
            mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], 1)
            given = {"attention_mask": mask, "position_ids": mask.sum(-1, keepdim=True) - 1}
            more = torch.full((2, 1), 9 + step)
            logits.append(model(family)(more, past_key_values=slots, **given).logits)
    return torch.cat(logits, 1)


@pytest.mark.parametrize("method", [name for name in registered() if name != "compose"])
def test_chunks_give_what_the_whole_prompt_gives(method: str) -> None:
    chunked, whole = (cache_for(model("llama"), method, 0.3) for _ in range(2))
    if method in REFUSED:
        with pytest.raises(UserError, match=REFUSED[method]):
            run(chunked, CHUNK)
        return
    given, expected = run(chunked, CHUNK), run(whole, TOKENS)
    assert (given - expected).abs().max() < 1e-4
    for layer, other in zip(chunked.compressed_layers(), whole.compressed_layers(), strict=True):
        assert torch.equal(layer.budget, other.budget)
        assert torch.allclose(layer.evicted_votes, other.evicted_votes)
        mine, theirs = (
            [sorted(p[v].tolist()) for p, v in zip(s.position.flatten(0, 1), s.valid.flatten(0, 1), strict=True)]
            for s in (layer.slots, other.slots)
        )
        assert mine == theirs


@pytest.mark.parametrize("family", ["gemma3", "qwen3", "falcon-alibi-grouped"])
def test_chunks_in_other_families(family: str) -> None:
    chunked, whole = (make_cache(model(family), "h2o", 0.3) for _ in range(2))
    assert (run(chunked, 37, family) - run(whole, TOKENS, family)).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("method", "options", "chunk", "sentence"),
    [
        ("snapkv", {}, 31, "last 32 queries of the prompt of 150 tokens"),
        ("pyramidinfer", {}, 30, "last 31 queries"),
        ("keepkv", {"window": 64}, 63, "at least 64"),
        ("compose", {"score": "zsmerge", "allocate": "d2o"}, 149, "last 150 queries"),
        ("h2o", {}, 0, "at least 1 token"),
    ],
)
def test_what_chunks_would_change_is_refused(method: str, options: dict, chunk: int, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        cache_for(model(), method, 0.3, **options).expect(TOKENS, chunk)


def test_the_odd_chunk_comes_first() -> None:
    assert chunk_sizes(10, 4) == [2, 4, 4]
    assert chunk_sizes(8, 4) == [4, 4]
    assert chunk_sizes(3, 4) == [3]


@pytest.mark.parametrize("method", ["full", "snapkv", "zsmerge"])
@pytest.mark.parametrize("chunk", [33, 50, 1000])
def test_prefill_in_chunks_returns_the_same_logits(method: str, chunk: int) -> None:
    loaded = LoadedModel(model(), None, "tiny")
    ids = prompt()[0][:1]
    caches = [cache_for(model(), method, 0.3) for _ in range(2)]
    given, expected = prefill(loaded, caches[0], ids, chunk), prefill(loaded, caches[1], ids)
    assert torch.allclose(given, expected, atol=1e-4)
    token = torch.tensor(5)
    assert torch.allclose(decode_one(loaded, caches[0], token), decode_one(loaded, caches[1], token), atol=1e-4)


def test_nothing_is_copied_or_decided_between_chunks() -> None:
    """One table of the prompt's size from the first chunk on."""
    slots = make_cache(model(), "snapkv", 0.2)
    ids, end, places = prompt()[0][:1], 0, set()
    with torch.inference_mode():
        sizes = slots.expect(TOKENS, CHUNK)
        for size in sizes[:-1]:
            model()(ids[:, end : end + size], past_key_values=slots)
            end += size
            table = slots.compressed_layers()[0].tables[0]
            assert table.capacity == TOKENS
            assert table.width == end
            assert table.is_dense
            places.add(table.slots.keys.data_ptr())
    assert len(places) == 1
