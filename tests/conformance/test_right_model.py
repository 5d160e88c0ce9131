"""A cache is only filled by a model that lets it compress: any other gets one sentence at its first pass."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache
from kvlab.core.errors import UserError
from kvlab.core.methods import registered
from kvlab.models.load import prepare
from tests.families import cache_for, tiny_model

SMALL = {"num_hidden_layers": 2}
METHODS = [method for method in registered() if method != "full"]


class Wrapped(nn.Module):
    """Stands for what puts a model into another module, as adapters do: everything else is the model's."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.inner = model

    def forward(self, *given: object, **named: object) -> object:
        return self.inner(*given, **named)


def switched(model: PreTrainedModel) -> PreTrainedModel:
    model.set_attn_implementation("sdpa")
    return model


@cache
def shared(family: str = "llama", **changes: int) -> PreTrainedModel:
    """A model that several tests use, and none switches."""
    return prepare(tiny_model(family, **changes))


OTHERS: dict[str, Callable[[PreTrainedModel], nn.Module]] = {
    "plain": lambda model: tiny_model("llama", **SMALL),
    "switched": switched,
    "switched copy": lambda model: switched(copy.deepcopy(model)),
    "fewer heads": lambda model: shared(**SMALL, num_key_value_heads=1),
    "more layers": lambda model: shared(num_hidden_layers=3),
    "another family": lambda model: shared("qwen2", **SMALL),
}


def after_prompt(model: nn.Module, compressed: CompressedCache) -> torch.Tensor:
    ids = torch.randint(3, 97, (1, 40), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        model(ids, past_key_values=compressed)
        return model(ids[:, :1], past_key_values=compressed).logits


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("method", METHODS)
def test_another_model_or_attention_is_refused_at_the_first_pass(method: str, other: str) -> None:
    model = prepare(tiny_model("llama", **SMALL)) if "switched" in other else shared(**SMALL)
    compressed, ids = cache_for(model, method, 0.3), torch.randint(3, 97, (1, 40))
    runs = OTHERS[other](model)
    with torch.inference_mode(), pytest.raises(UserError, match=r"make_cache"):
        runs(ids, past_key_values=compressed)


@pytest.mark.parametrize("method", METHODS)
def test_a_copy_and_a_wrapped_model_compress_as_the_model_does(method: str) -> None:
    model = prepare(tiny_model("llama", **SMALL))
    expected = after_prompt(model, cache_for(model, method, 0.3))
    compressed = cache_for(model, method, 0.3)
    for same in (copy.deepcopy(model), Wrapped(model)):
        assert torch.equal(after_prompt(same, compressed), expected)
        compressed.reset()


@pytest.mark.parametrize("method", ["kvzip", "attention-matching", "exactmerge2", "expected-attention"])
def test_a_copy_that_tells_the_cache_nothing_is_refused(method: str) -> None:
    """Made before the cache was: nothing in it hands over what these methods work on."""
    model = prepare(tiny_model("llama", **SMALL))
    early = copy.deepcopy(model)
    compressed = cache_for(model, method, 0.3)
    if method == "exactmerge2" and compressed.settings.second_pass is None:
        pytest.skip("without a second pass it needs nothing")
    with pytest.raises(UserError, match="make_cache was given"):
        after_prompt(early, compressed)


def test_the_last_layer_alone_is_noticed_at_the_next_pass() -> None:
    """No later layer is there to notice it in the same pass."""
    model = prepare(tiny_model("llama", num_hidden_layers=1))
    compressed = cache_for(model, "h2o", 0.3)
    with pytest.raises(UserError, match="attention implementation"):
        after_prompt(switched(model), compressed)
