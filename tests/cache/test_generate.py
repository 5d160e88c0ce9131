"""The cache as a drop-in for `model.generate`."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from transformers import PreTrainedModel

from kvlab.core.cache import make_cache
from kvlab.core.errors import UserError
from kvlab.core.methods import registered
from kvlab.models.load import prepare
from tests.families import cache_for, tiny_model

METHODS = list(registered())
SMALL = {"num_hidden_layers": 2}


@lru_cache
def models() -> tuple[PreTrainedModel, PreTrainedModel]:
    """(plain transformers, the same weights on kvlab's attention)."""
    return tiny_model("llama", **SMALL), prepare(tiny_model("llama", **SMALL))


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 97, (2, 20), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


@lru_cache
def plainly(**options: int) -> torch.Tensor:
    """What plain transformers writes behind `inputs()`."""
    torch.manual_seed(11)
    return models()[0].generate(**inputs(), **options, eos_token_id=None)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_generate_with_a_full_budget_is_plain_generate(method: str, sampled: bool) -> None:
    _, lab = models()
    options = {"max_new_tokens": 6, "do_sample": sampled}
    plain = plainly(**options)
    torch.manual_seed(11)
    ours = lab.generate(**inputs(), **options, eos_token_id=None, past_key_values=cache_for(lab, method, 1.0))
    assert torch.equal(plain, ours)


@lru_cache
def second_turn() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """(a text whose middle plain transformers wrote, what it writes behind it)."""
    first = plainly(max_new_tokens=5, do_sample=False)
    text = torch.cat([first, torch.full((2, 4), 9)], 1)
    mask = torch.cat([inputs()["attention_mask"], torch.ones(2, 9, dtype=torch.long)], 1)
    given = {"input_ids": text, "attention_mask": mask}
    return given, models()[0].generate(**given, max_new_tokens=5, do_sample=False, eos_token_id=None)


@pytest.mark.parametrize("method", METHODS)
def test_a_second_turn_through_generate(method: str) -> None:
    _, lab = models()
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    cache, (text, whole) = cache_for(lab, method, 1.0), second_turn()
    first = lab.generate(**inputs(), **options, past_key_values=cache)
    assert torch.equal(first, text["input_ids"][:, : first.shape[1]])
    assert torch.equal(lab.generate(**text, **options, past_key_values=cache), whole)


@pytest.mark.parametrize("method", METHODS)
def test_beam_search_follows_its_beams(method: str) -> None:
    """Reordering must move metadata with the keys: with a full budget beams equal plain beams."""
    _, lab = models()
    options = {"max_new_tokens": 4, "num_beams": 3, "do_sample": False}
    ours = lab.generate(**inputs(), **options, eos_token_id=None, past_key_values=cache_for(lab, method, 1.0))
    assert torch.equal(ours, plainly(**options))
    compressed = lab.generate(**inputs(), **options, eos_token_id=None, past_key_values=cache_for(lab, method, 0.4))
    assert compressed.shape == ours.shape


def test_a_cache_can_be_reset_and_used_again() -> None:
    lab = prepare(tiny_model("llama"))
    cache = make_cache(lab, "keepkv", 0.4)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    first = lab.generate(**inputs(), **options, past_key_values=cache)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert torch.equal(lab.generate(**inputs(), **options, past_key_values=cache), first)


def test_rolling_back_says_why_not() -> None:
    lab = prepare(tiny_model("llama"))
    cache = make_cache(lab, "h2o", 0.4)
    lab.generate(**inputs(), max_new_tokens=3, past_key_values=cache)
    assert not cache.is_croppable
    with pytest.raises(UserError, match=r"cannot be rolled back.*copy it before the pass"):
        cache.crop(-1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"budget": 0}, "between 0 and 1"),
        ({"budget": 0.0}, "between 0 and 1"),
        ({"budget": -3}, "whole number of slots"),
        ({"budget": "abc"}, "fraction of the prompt"),
        ({"budget": True}, "fraction of the prompt"),
        ({"budget": 0.2, "method": "h20"}, "no method called 'h20'"),
        ({"budget": 0.2, "method": "h2o", "sinks": 3}, "no hyper-parameter 'sinks'"),
        ({"budget": 0.2, "method": "keepkv", "rule": "magic"}, "'rule' of keepkv cannot be 'magic'"),
        ({"budget": 0.2, "method": "snapkv", "kernel": 4}, "must be odd"),
        ({"budget": 0.2, "compress_every": 0}, "from 1 to 4096"),
    ],
)
def test_bad_arguments_get_one_sentence(arguments: dict, sentence: str) -> None:
    lab = prepare(tiny_model("llama"))
    with pytest.raises(ValueError, match=sentence) as error:
        make_cache(lab, **({"method": "h2o"} | arguments))
    assert str(error.value).count("\n") == 0


def test_a_huge_budget_drops_nothing() -> None:
    lab = prepare(tiny_model("llama"))
    cache = make_cache(lab, "h2o", 10**9)
    lab.generate(**inputs(), max_new_tokens=4, past_key_values=cache)
    assert all((layer.evicted_votes == 0).all() for layer in cache.compressed_layers())
