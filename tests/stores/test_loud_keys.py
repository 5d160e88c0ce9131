"""Loud channels in a model's keys: which stores are warned of, and what these lose."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from kvlab.checking.loud_keys import key_loss
from kvlab.checking.servability import text_ids
from kvlab.core.cache.rotary import find_rotary
from kvlab.core.stores import STORES
from kvlab.core.stores.store import keys_as_held
from kvlab.models.load import load_model

PROMPT = 512
NEXT = 96
NAMES = ("turbo4", "lean4", "q4_0", "kivi4", "centred4", "int8", "q8_0", "gear4")
# Of each half of a head's channels, which rotate in pairs: the first ones fast, the last ones by .04 in 1,024 tokens.
PLACES = {"fast": (0, 1), "slow": (14, 15)}


@lru_cache(maxsize=3)
def divergences(where: str) -> dict[str, tuple[float, bool]]:
    """By store: (KL from native keys after a prompt, whether it is warned of); two loud channels in half the heads."""
    loaded = load_model("mini", dtype="float32")
    model = loaded.model
    for layer in model.model.layers if where else ():
        projection = layer.self_attn.k_proj
        bias = torch.zeros(projection.out_features)
        for head in range(model.config.num_key_value_heads // 2):
            for channel in PLACES[where]:
                bias[head * model.config.head_dim + channel] = 24.0  # as loud as in Qwen2, whose bias does the same
        projection.bias = nn.Parameter(bias, requires_grad=False)
    ids = text_ids(loaded, PROMPT + NEXT)
    rotary = find_rotary(model)
    found = {}
    prompt = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(ids[:, :PROMPT], past_key_values=prompt)
        native = [layer.keys for layer in prompt.layers]
        values = [layer.values for layer in prompt.layers]
        expected = continued(model, ids, native, values)
        order = torch.arange(PROMPT).expand(1, 4, -1)
        live = torch.full((1, 4), PROMPT)
        for name in NAMES:
            store = STORES[name]
            given = continued(model, ids, [keys_as_held(store, keys, order, live) for keys in native], values)
            divergence = float((expected.exp() * (expected - given)).sum(-1).mean())
            found[name] = divergence, key_loss(store, native, rotary).loud
    return found


def continued(model: PreTrainedModel, ids: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Log-probabilities (NEXT, vocabulary) of the tokens after a prompt with these keys."""
    cache = DynamicCache(config=model.config)
    for layer, states in enumerate(zip(keys, values, strict=True)):
        cache.update(*states, layer)
    logits: Tensor = model(ids[:, PROMPT:], past_key_values=cache).logits
    return logits[0].log_softmax(-1)


@pytest.mark.parametrize(
    ("where", "warned"),
    [("", set()), ("slow", {"turbo4", "lean4", "q4_0"}), ("fast", {"turbo4", "lean4", "q4_0", "kivi4", "centred4"})],
)
def test_the_stores_that_are_warned_of_are_those_whose_divergence_rises(where: str, warned: set[str]) -> None:
    """KIVI's groups of 32 slots and a subtracted mean bear loud channels that turn slowly, not those that turn fast."""
    plain = divergences("")
    found = divergences(where)
    print({name: (round(plain[name][0], 5), round(found[name][0], 5), found[name][1]) for name in NAMES})
    assert {name for name in NAMES if found[name][1]} == warned
    for name in NAMES:
        before = plain[name][0]
        now = found[name][0]
        assert now > 3 * before if name in warned else now < 1.5 * before + 5e-4
