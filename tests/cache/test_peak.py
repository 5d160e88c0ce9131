"""What a cache says it held at once, against the storages that torch made and freed, and what a run records of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvlab.core.cache import CompressedCache, make_cache, second_pass
from kvlab.core.cache.cache_copy import copy_with_settings
from kvlab.models.load import prepare
from tests.cache.live_storages import LiveStorages

LAYERS, HEADS, WIDTH, TOKENS, STEPS = 4, 2, 32, 500, 3
WHOLE = LAYERS * HEADS * TOKENS * 2 * WIDTH * 4  # keys and values of the prompt in float32


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=HEADS, head_dim=WIDTH, hidden_size=64,
        intermediate_size=64, vocab_size=300, max_position_embeddings=4096, pad_token_id=0,
    )  # fmt: skip
    return prepare(LlamaForCausalLM(config).eval())


def prompt() -> torch.Tensor:
    return torch.randint(3, 90, (1, TOKENS), generator=torch.Generator().manual_seed(1))


def peaks(model: Any, cache: CompressedCache, chunks: tuple[int, ...] = (TOKENS,)) -> list[tuple[int, int]]:
    """(said, measured) of the prompt's step and of some decode steps."""
    found, ids = [], prompt()
    with torch.inference_mode():
        for step in range(1 + STEPS):
            passes = [ids[:, :1]] if step else list(ids.split(chunks, 1))
            with LiveStorages(cache) as storages:
                for part in passes:
                    model(part, past_key_values=cache, logits_to_keep=1)
            found.append((cache.memory().peak_bytes, storages.peak()))
    return found


# One of each kind: nothing leaves; a layer decides in its own pass, alike or unlike heads, merging, packed; all layers
# decide after the last; the prompt is read again.
LAYER_BY_LAYER = ["snapkv", "adakv", "zsmerge", "zsmerge store=int8"]
ALL_LAYERS_FIRST = ["d2o"]
READ_AGAIN = ["kvzip", "exactmerge2", "kvcompose", "attention-matching", "kvzip store=int8"]


def cache_of(model: Any, words: str) -> CompressedCache:
    name, *options = words.split()
    parts = (option.split("=") for option in options)
    return make_cache(model, name, 0.2, **{key: int(value) if value.isdigit() else value for key, value in parts})


@pytest.mark.parametrize("method", ["full", *LAYER_BY_LAYER, *ALL_LAYERS_FIRST, *READ_AGAIN])
def test_the_peak_of_each_step_is_what_torch_held(model: Any, method: str) -> None:
    cache = cache_of(model, method)
    for said, measured in peaks(model, cache):
        assert said == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("budget", [0.05, 0.5])
def test_on_policy_the_copies_that_read_again_count(model: Any, budget: float, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make_cache(model, "attention-matching", budget, on_policy=True)
    storages = LiveStorages(cache)

    def copy_and_watch(*given: Any) -> CompressedCache:
        storages.caches.add(made := copy_with_settings(*given))
        return made

    monkeypatch.setattr(second_pass, "copy_with_settings", copy_and_watch)
    with torch.inference_mode(), storages:
        model(prompt(), past_key_values=cache, logits_to_keep=1)
    assert cache.memory().peak_bytes == pytest.approx(storages.peak(), rel=0.01)


def test_in_blocks_the_layers_whole_states_exist_beside_its_table(model: Any) -> None:
    (said, measured), *_ = peaks(model, cache_of(model, "keydiff block=64"))
    assert WHOLE / LAYERS < said <= measured < 1.2 * said  # torch keeps some of the model's own views a little longer


@pytest.mark.parametrize("method", ["full", *ALL_LAYERS_FIRST, *READ_AGAIN])
def test_where_all_layers_are_whole_at_once_the_peak_is_at_least_the_uncompressed_cache(
    model: Any, method: str
) -> None:
    first = peaks(model, cache_of(model, method))[0]
    assert min(first) >= WHOLE


@pytest.mark.parametrize("method", [*LAYER_BY_LAYER, *ALL_LAYERS_FIRST, *READ_AGAIN])
def test_a_decode_step_does_not_report_the_prompts_peak(model: Any, method: str) -> None:
    cache = cache_of(model, method)
    (prompts, _), *later = peaks(model, cache)
    assert all(said < 0.6 * prompts for said, _ in later)
    assert later[-1][0] >= cache.memory().allocated_bytes


def test_a_prompt_in_chunks_is_one_step(model: Any) -> None:
    cache = make_cache(model, "kvzip", 0.2)
    cache.expect(TOKENS)
    said, measured = peaks(model, cache, (300, 200))[0]
    assert said == pytest.approx(measured, rel=0.05) and said >= WHOLE


def test_a_growing_table_exists_twice_for_a_moment(model: Any) -> None:
    said = [one for one, _ in peaks(model, make_cache(model, "full", 1.0))]
    layer = WHOLE // LAYERS
    assert said[1] - said[2] >= 0.9 * layer, "the first new token moves each table, one at a time"
