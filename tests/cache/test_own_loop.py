"""Loops over one's own model: with and without gradients, copies, pickles, and steps back."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from kvlab.core.cache import CompressedCache
from kvlab.core.errors import UserError
from kvlab.core.methods import registered
from kvlab.models.load import prepare
from tests.families import cache_for, tiny_model

METHODS = list(registered())
READ_THE_TEXT = ("semanticache", "kvzip", "kvcompose", "exactmerge2", "attention-matching")
TOKENS = 24
Guard = Callable[[], AbstractContextManager[object]]


@lru_cache
def model(family: str = "llama") -> PreTrainedModel:
    return prepare(tiny_model(family))


def ids(tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 97, (1, tokens), generator=torch.Generator().manual_seed(seed))


def steps(cache: CompressedCache, seed: int = 1, count: int = 3, guard: Guard = torch.no_grad) -> Tensor:
    """Logits after some steps."""
    for step in range(count):
        with guard():
            logits = model()(ids(1, seed * 100 + step), past_key_values=cache).logits
    return logits.detach()


def filled(method: str, guard: Guard = torch.no_grad, budget: float = 0.5, **options: object) -> CompressedCache:
    cache = cache_for(model(), method, budget, **options)
    with guard():
        model()(ids(TOKENS), past_key_values=cache)
    return cache


@pytest.mark.parametrize("method", METHODS)
def test_the_same_logits_in_any_autograd_mode(method: str) -> None:
    """Also where the prompt was read in another mode than the steps."""
    expected = steps(filled(method))
    for first, then in (
        (torch.enable_grad, torch.enable_grad),
        (torch.inference_mode, torch.enable_grad),
        (torch.enable_grad, torch.inference_mode),
    ):
        assert torch.equal(steps(filled(method, first), guard=then), expected)


def test_a_backward_pass_says_that_there_are_no_gradients() -> None:
    logits = model()(ids(TOKENS), past_key_values=cache_for(model(), "snapkv", 0.5)).logits
    with pytest.raises(UserError, match=r"without gradients.*run the model without past_key_values"):
        logits.sum().backward()


@pytest.mark.parametrize("method", METHODS)
def test_copies_and_pickles_go_on_as_the_cache(method: str) -> None:
    cache, file = filled(method), io.BytesIO()
    steps(cache, seed=2)  # of which in-place kernels keep arrays over the cache's memory
    torch.save(cache, file)
    file.seek(0)
    copied, loaded = copy.deepcopy(cache), torch.load(file, weights_only=False)
    expected = steps(cache)
    assert torch.equal(steps(copied), expected)
    assert torch.equal(steps(loaded), expected)


def test_a_pickle_does_not_hold_the_model() -> None:
    """Whose rotary frequencies a cache reads while the text grows: it is refused, and a copy is not."""
    changing = prepare(tiny_model("llama-dynamic"))
    cache = cache_for(changing, "h2o", 0.5)
    with torch.no_grad():
        changing(ids(TOKENS), past_key_values=cache)
    with pytest.raises(UserError, match="kvlab prefix"):
        torch.save(cache, io.BytesIO())
    copied = copy.deepcopy(cache)
    with torch.no_grad():
        one, other = (changing(ids(1), past_key_values=each).logits for each in (cache, copied))
    assert torch.equal(one, other)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_a_cache_that_keeps_all_takes_back_its_last_tokens(guard: Guard) -> None:
    """As transformers' own cache does, with the same number."""
    cache, plain = filled("full", guard), DynamicCache(config=model().config)
    steps(cache, seed=7, guard=guard)
    cache.crop(-3)
    plainly = tiny_model("llama")
    with torch.no_grad():
        plainly(ids(TOKENS), past_key_values=plain)
        plainly(ids(3, 9), past_key_values=plain)
        plain.crop(-3)
        expected = [plainly(ids(1, 100 + step), past_key_values=plain).logits for step in range(3)][-1]
    assert torch.allclose(steps(cache), expected, atol=1e-4) and cache.get_seq_length() == TOKENS + 3


@pytest.mark.parametrize("tokens", [1, -TOKENS - 1])
def test_crop_says_which_numbers_it_takes(tokens: int) -> None:
    with pytest.raises(UserError, match=r"minus the number of last tokens.*cache.crop\(-1\), at most the 24"):
        filled("full").crop(tokens)


def test_what_was_packed_cannot_be_taken_back() -> None:
    cache = filled("full", budget=1.0, store="int8")
    before = cache.get_seq_length()
    with pytest.raises(UserError, match="copy it before the pass"):
        cache.crop(-1)
    assert cache.get_seq_length() == before


@pytest.mark.parametrize("method", ["full", "snapkv", "keepkv"])
def test_generate_is_not_given_a_prompt_that_the_cache_holds(method: str) -> None:
    cache, options = filled(method), {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    with pytest.raises(UserError, match=r"has read 24 tokens and the text given to generate has 24.*all but the last"):
        model().generate(ids(TOKENS), past_key_values=cache, **options)
    assert cache.get_seq_length() == TOKENS
    if method == "full":
        cache.crop(-1)
        found = model().generate(ids(TOKENS), past_key_values=cache, **options)
        assert torch.equal(found, tiny_model("llama").generate(ids(TOKENS), **options))


DRAFTS = {
    "lookup": {"prompt_lookup_num_tokens": 3},
    "early exit": {"assistant_early_exit": 1},
    "heads": {"use_mtp": True},
    "model": {},
    "draft blocks": {"speculation_type": "dflash"},
}


@pytest.mark.parametrize("by_config", [False, True])
@pytest.mark.parametrize("way", DRAFTS)
def test_assisted_decoding_is_refused_before_the_prompt_is_read(way: str, by_config: bool) -> None:
    options = dict(DRAFTS[way])
    assistant = {"assistant_model": tiny_model("llama")} if way in ("model", "draft blocks") else {}
    if by_config:
        own = copy.deepcopy(model().generation_config)
        own.update(max_new_tokens=4, **options)
        options = {"generation_config": own}
    cache = cache_for(model(), "h2o", 0.5)
    with pytest.raises(UserError, match=r"does not support assisted decoding.*call generate without assistant_model"):
        model().generate(ids(TOKENS), past_key_values=cache, max_new_tokens=4, **options, **assistant)
    assert cache.get_seq_length() == 0


@pytest.mark.parametrize("method", METHODS)
def test_embeddings_give_what_ids_give_or_a_sentence(method: str) -> None:
    cache = cache_for(model(), method, 0.5)
    embedded = model().get_input_embeddings()(ids(TOKENS)).detach()
    if method in READ_THE_TEXT:
        with pytest.raises(UserError, match="pass input_ids to the model, not embeddings"):
            model()(inputs_embeds=embedded, past_key_values=cache)
        return
    with torch.no_grad():
        model()(inputs_embeds=embedded, past_key_values=cache)
    assert torch.equal(steps(cache), steps(filled(method)))
