"""A cache that is kept and restored goes on as the live one, bit for bit: every method, store and kind of layer."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.state import RENAMED, CacheState, restore_state, state_of
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from tests.conformance.test_matrix import METHODS, STEPS, batch, decode, lab_model, turn
from tests.conformance.variants import STORES
from tests.families import DEVICE, cache_for

MORE_STEPS = 8
WITHOUT_POSITIONS = ("bloom", "mpt")
SHORT_STORES = [name for name in STORES if name.startswith("short-")]


def restored(cache: CompressedCache, empty: CompressedCache) -> CompressedCache:
    """What the file of a cache holds, put into a new cache for the same model and method."""
    state = state_of(cache)
    tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
    restore_state(empty, CacheState(json.loads(json.dumps(state.values)), tensors), DEVICE)
    return empty


@torch.inference_mode()
def next_logits(model: PreTrainedModel, cache: CompressedCache, mask: Tensor) -> Tensor:
    """Logits of some more decode steps and a further turn."""
    found = []
    for step in range(MORE_STEPS):
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
        given = {"position_ids": (mask.cumsum(-1) - 1)[:, -1:], "attention_mask": mask, "past_key_values": cache}
        found.append(model(torch.full_like(mask[:, :1], 10 + step), **given).logits)
    return torch.cat(found, 1)


def check(model: PreTrainedModel, cache: CompressedCache, empty: CompressedCache) -> None:
    ids, mask = batch()
    decode(model, cache, ids, mask)
    seen = torch.cat([mask, mask.new_ones(len(mask), STEPS - 1)], 1)
    other = restored(cache, empty)
    same_state(cache, other)
    assert cache.memory() == other.memory()
    assert torch.equal(next_logits(model, cache, seen), next_logits(model, other, seen))
    same_state(cache, other)


def same_state(cache: CompressedCache, other: CompressedCache) -> None:
    """Kept slots, votes, log masses, scores, counters and draws."""
    ours, theirs = state_of(cache), state_of(other)
    assert ours.values == theirs.values
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in ours.tensors.items():
        pair = (one.reshape(-1).view(torch.uint8) for one in (tensor, theirs.tensors[name]))
        assert torch.equal(*pair), name
    for one, two in zip(cache.compressed_layers(), other.compressed_layers(), strict=True):
        for name in ("position", "votes", "log_mass", "score", "valid"):
            assert torch.equal(getattr(one.slots, name), getattr(two.slots, name)), name


@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_on_as_before(method: str) -> None:
    model = lab_model("llama", torch.float32)
    check(model, cache_for(model, method, 0.4), cache_for(model, method, 0.4))


@pytest.mark.parametrize("store", SHORT_STORES)
def test_every_store_goes_on_as_before(store: str) -> None:
    model = lab_model("llama", torch.float32)
    check(model, *(make_cache(model, "keepkv", 0.5, store=store, compress_every=3) for _ in range(2)))


@pytest.mark.parametrize(
    "sparse_attention",
    ["quest/page=4/dense_layers=0", "retroinfer/cluster=4/recent=4", "magicpig/recent=2", "shadowkv/chunk=4"],
)
def test_every_kind_of_sparse_attention_goes_on_as_before(sparse_attention: str) -> None:
    model = lab_model("llama", torch.float32)
    check(model, *(make_cache(model, make_method("snapkv", read=sparse_attention), 0.5) for _ in range(2)))


@pytest.mark.parametrize(
    ("family", "method"),
    [("gemma3", "snapkv"), ("phi3-longrope", "keepkv"), ("falcon-h1", "h2o"), ("lfm2", "adakv"), ("gpt-oss", "full")],
)
def test_other_layers_go_on_as_before(family: str, method: str) -> None:
    """With a window, changing rotary frequencies, or a recurrent state, beside slots or instead of them."""
    model = lab_model(family, torch.float32)
    check(model, cache_for(model, method, 0.4), cache_for(model, method, 0.4))


def test_a_further_turn_and_reordered_rows_go_on_as_before() -> None:
    (ids, mask), model = batch(), lab_model("llama", torch.float32)
    cache = cache_for(model, "adakv", 0.4)
    decode(model, cache, ids, mask)
    cache.reorder_cache(torch.tensor([1, 0], device=DEVICE))
    other, mask = restored(cache, cache_for(model, "adakv", 0.4)), mask.flip(0)
    assert torch.equal(turn(model, cache, mask), turn(model, other, mask))
    same_state(cache, other)


def test_a_state_with_the_names_of_an_earlier_version_goes_on_as_before() -> None:
    (ids, mask), model = batch(), lab_model("llama", torch.float32)
    cache = cache_for(model, "adakv", 0.4)
    decode(model, cache, ids, mask)
    state = state_of(cache)
    text = json.dumps(state.values)
    for earlier, name in RENAMED.items():
        assert f'"{name}"' in text
        text = text.replace(f'"{name}"', f'"{earlier}"')
    other = cache_for(model, "adakv", 0.4)
    tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
    restore_state(other, CacheState(json.loads(text), tensors), DEVICE)
    assert torch.equal(turn(model, cache, mask), turn(model, other, mask))
    same_state(cache, other)


def test_a_state_of_other_layers_and_a_pending_decision_are_refused() -> None:
    model = lab_model("llama", torch.float32)
    cache = cache_for(model, "h2o", 0.4)
    decode(model, cache, *batch())
    state = state_of(cache)
    with pytest.raises(UserError, match="other layers"):
        restore_state(cache_for(lab_model("gemma3", torch.float32), "h2o", 0.4), state, DEVICE)
    broken = CacheState({**state.values, "layers": [{"class": "CompressedLayer"}] * 3}, {})
    broken.values["settings"] = {}
    with pytest.raises(UserError, match="read the text again"):
        restore_state(cache_for(model, "h2o", 0.4), broken, DEVICE)
    cache.settings.unattended = 0
    with pytest.raises(UserError, match="still to come"):
        state_of(cache)


# What objects of a cache hold. Where a name is added, files from before cannot be read: raise
# `kvlab.library.prefixes.FORMAT`, then write down the new names.
LAYER = (
    "announced buckets bytes_read checkpoint cumulative_length device dtype generator is_initialized layer_idx lengths "
    "peak_bytes prompt_end prompt_compressed head_budgets compressed_index references rotary steps_read head_index "
    "tokens_seen waiting"
)
TABLE = "_slots ends_with_newest head_state is_dense left_bytes occupied weighted width"
HELD = {
    "CompressedLayer": LAYER,
    "Bucket": "evicted_votes guard_activations head_budgets started table",
    "HeadBudgets": "largest per_row slots smallest",
    "SlotTable": TABLE,
    "PackedTable": f"{TABLE} changed coded first_native learned mean_key native restless room rotary used",
    "Slots": "extra keys log_mass position score valid values votes",
    "RotaryOfPasses": "_mixed _newest",
    "Rotary": "interleaved inverse_frequencies scaling",
}


def test_what_a_cache_holds_is_what_files_hold() -> None:
    found: dict[str, str] = {}

    def look(value: object) -> None:
        if isinstance(value, dict):
            if "object" in value:
                found[value["object"]] = " ".join(sorted(value["attributes"]))
            for one in value.values():
                look(one)
        elif isinstance(value, list):
            for one in value:
                look(one)

    for family, store in (("llama", "native"), ("llama", "short-kivi4"), ("phi3-longrope", "native")):
        model = lab_model(family, torch.float32)
        cache = make_cache(model, make_method("keepkv", store=store), 0.5)
        decode(model, cache, *batch())
        values = state_of(cache).values
        look(values)
        layer = values["layers"][0]
        found[layer["class"]] = " ".join(sorted(layer.keys() - {"class"}))
    assert found == {name: " ".join(sorted(words.split())) for name, words in HELD.items()}
