"""A synthetic prompt leaves a cache as a real one would: lengths, budgets, bytes; and merges really happen."""

from __future__ import annotations

import pytest
import torch

from kvlab.bench.caches import check_allocated_bytes, fill, live_bytes, random_token, tensor_bytes
from kvlab.bench.competitors import Contender, Load, PlainContender, SlotContender, StaticContender
from kvlab.bench.models import BenchModel
from kvlab.bench.request import make_request
from kvlab.core.cache import CompressedCache
from kvlab.core.choice import MethodChoice
from kvlab.core.methods import make_method, registered
from kvlab.models.load import prepare
from tests.families import FAMILIES, cache_for, tiny_model

PROMPT, BUDGET = 150, 30
REQUEST = make_request(mode="decode", model="shape:tiny", device="cpu", repeats=2, steps=2, warmup=1)


def filled(tiny: BenchModel, method: str, generated: int = 0, batch: int = 2) -> CompressedCache:
    cache = cache_for(tiny.model, method, BUDGET)
    with torch.inference_mode():
        fill(tiny, cache, batch, PROMPT, generated)
    return cache


def step(tiny: BenchModel, cache: CompressedCache, batch: int = 2) -> None:
    with torch.inference_mode():
        tiny.model(random_token(tiny, batch), past_key_values=cache, use_cache=True)


@pytest.mark.parametrize("method", list(registered()))
def test_every_method_has_seen_all_and_holds_its_budget(tiny: BenchModel, method: str) -> None:
    cache = filled(tiny, method)
    assert cache.memory().logical_tokens == PROMPT
    step(tiny, cache)
    memory = cache.memory()
    assert memory.logical_tokens == cache.get_seq_length() == PROMPT + 1
    if not make_method(method).needs_budget:
        assert 0 < memory.live_slots <= PROMPT + 1
        return
    assert 0 < memory.live_slots <= BUDGET + 1
    real = cache_for(tiny.model, method, BUDGET)
    with torch.inference_mode():
        tiny.model(random_token(tiny, 2, PROMPT), past_key_values=real, use_cache=True)
    step(tiny, real)
    assert memory.live_slots == pytest.approx(real.memory().live_slots, abs=2)
    gathers = cache.settings.pipeline.buffer  # there is room from the start for what waits for a decision
    assert all(layer.physical_slots - gathers < PROMPT for layer in memory.layers)
    check_allocated_bytes(cache)


@pytest.mark.parametrize(("method", "slots"), [("h2o", BUDGET), ("keepkv", BUDGET), ("snapkv", BUDGET + 20)])
def test_generated_tokens_come_on_top_where_a_method_only_compresses_the_prompt(
    tiny: BenchModel, method: str, slots: int
) -> None:
    memory = filled(tiny, method, generated=20).memory()
    assert (memory.logical_tokens, memory.live_slots) == (PROMPT + 20, slots)


def test_full_holds_everything(tiny: BenchModel) -> None:
    memory = filled(tiny, "full").memory()
    assert memory.live_slots == memory.logical_tokens == PROMPT


def test_keys_are_alike_enough_to_be_merged(tiny: BenchModel) -> None:
    for method in ("keepkv", "zsmerge", "d2o"):
        cache = filled(tiny, method)
        step(tiny, cache)
        votes = torch.stack([layer.slots.votes.amax() for layer in cache.compressed_layers()])
        assert votes.max() > 1, method


def test_a_filled_cache_decodes_like_any_other(tiny: BenchModel) -> None:
    cache = filled(tiny, "keepkv")
    with torch.inference_mode():
        for _ in range(3):
            logits = tiny.model(random_token(tiny, 2), past_key_values=cache, use_cache=True).logits
    assert logits.isfinite().all()
    assert cache.get_seq_length() == PROMPT + 3


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "mistral-sliding"])
@pytest.mark.parametrize("method", ["h2o", "gvote", "keepkv"])
def test_every_family_can_be_filled(family: str, method: str) -> None:
    """Sliding layers, fused projections, one KV head, capped logits: filled, then decoded by the model itself."""
    found = BenchModel(prepare(tiny_model(family)), family)
    cache = filled(found, method)
    step(found, cache)
    assert cache.memory().logical_tokens == cache.get_seq_length() == PROMPT + 1
    if method != "gvote":
        assert cache.memory().live_slots == BUDGET
    check_allocated_bytes(cache)


def test_bytes_are_those_of_the_tensors(tiny: BenchModel) -> None:
    for method in ("full", "h2o", "keepkv", "adakv"):
        cache = filled(tiny, method)
        tables = [table for layer in cache.compressed_layers() for table in layer.tables]
        held = [t for one in tables for t in (one.slots.keys, one.slots.values, *one.slots.varying_columns().values())]
        held += [t for one in tables for t in one.head_state.values()]
        by_hand = sum(t.numel() * t.element_size() for t in held)
        check_allocated_bytes(cache)
        assert cache.memory().allocated_bytes == by_hand
        assert by_hand <= tensor_bytes(cache) <= by_hand + 4096


def test_books_that_do_not_match_are_noticed(tiny: BenchModel) -> None:
    cache = filled(tiny, "h2o")
    cache.compressed_layers()[0].hoard = torch.zeros(100_000)
    with pytest.raises(AssertionError, match="layer 0 reports"):
        check_allocated_bytes(cache)


def test_tensor_bytes_count_a_shared_storage_once_and_in_full() -> None:
    whole = torch.zeros(1000)
    assert tensor_bytes({"a": whole, "b": [whole[:10], whole[5:]]}) == 4000


def test_plain_and_static_caches_hold_the_context(tiny: BenchModel) -> None:
    load = Load(2, PROMPT)
    per_token = tiny.token_bytes * 2
    for kind in (PlainContender, StaticContender):
        contender = kind(tiny, load, REQUEST)
        contender.compile_options = {"backend": "eager"}
        with contender.at_work():
            Contender.prepare(contender)  # without the step that the static one makes after it
        assert int(contender.cache.get_seq_length()) == PROMPT
        assert live_bytes(contender.cache, PROMPT) == PROMPT * per_token


def test_the_compiled_static_step_says_the_same_as_the_plain_one(tiny: BenchModel) -> None:
    """Same fill, same first token: the same greedy tokens follow from both caches."""
    said = []
    for kind in (PlainContender, StaticContender):
        contender = kind(tiny, Load(1, 40), REQUEST)
        contender.compile_options = {"backend": "eager"}
        with contender.at_work():
            contender.prepare()
            for _ in range(3 if kind is PlainContender else 2):  # the static one makes a step while it prepares
                contender.step()
        said.append(contender.token.item())
        contender.release()
    assert said[0] == said[1]


def test_a_full_budget_decodes_like_plain_transformers(tiny: BenchModel) -> None:
    """The two baselines read the same synthetic states."""
    said = []
    for contender in (
        SlotContender(tiny, Load(2, 64), REQUEST, MethodChoice(method="full", budget=1.0)),
        PlainContender(tiny, Load(2, 64), REQUEST),
    ):
        with contender.at_work():
            contender.prepare()
            said.append(tiny.model(contender.token, past_key_values=contender.cache, use_cache=True).logits)
        contender.release()
    assert (said[0] - said[1]).abs().max() < 1e-4
