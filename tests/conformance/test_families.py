"""Every family and rotary embedding: a full budget is plain transformers, keys turn back, queries are their own.

What admits a family to `kvlab.core.families.SUPPORTED`. Methods are many and families are many: all pairs are run by
`make conformance` (test_matrix.py); here each family meets what a family can break.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from kvlab.core.attention.layer_handoff import watch_hidden_states
from kvlab.core.attention.queries import project_queries
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.contract.rotary import Rotary
from kvlab.core.families import SUPPORTED, prepare
from tests.conformance.test_matrix import PADS, PROMPT, batch, decode, near
from tests.families import DEVICE, EVERY, MORE, PLAIN, tiny_model

NO_ROTATION = (
    *("bloom", "mpt", "falcon-alibi", "falcon-alibi-grouped"),
    *("jamba", "nemotron-h", "granitemoe-hybrid"),
)
COMPRESSED = [family for family in EVERY if family != "mistral-sliding"]


@cache
def models(family: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """(plain transformers, the same weights on kvlab's attention)."""
    return tiny_model(family), prepare(tiny_model(family))


def test_every_supported_family_is_here() -> None:
    assert {kind for kind, _ in EVERY.values()} == set(SUPPORTED)


@pytest.mark.parametrize("family", MORE)
def test_full_budget_is_plain_transformers(family: str) -> None:
    """In a left-padded batch and alone, prompt and decoding."""
    plain, lab = models(family)
    ids, mask = batch()
    expected = decode(plain, DynamicCache(config=plain.config), ids, mask)
    assert expected.std() > 0.05, "a model that says nothing proves nothing"
    for method in ("full", "h2o", "keepkv"):
        ours = decode(lab, make_cache(lab, method, 1.0), ids, mask)
        assert near(ours, expected), method
    alone = decode(lab, make_cache(lab, "full"), ids[1:, PADS:], mask[1:, PADS:])
    assert near(alone[0], expected[1])


@pytest.mark.parametrize("family", MORE)
def test_compressed_a_padded_batch_equals_each_row_alone(family: str) -> None:
    """Evicted by windowed scores, merged with keys turned to each other, and in tables of unlike lengths."""
    _, lab = models(family)
    ids, mask = batch()
    for method, options in (("snapkv", {"window": 3}), ("keepkv", {"threshold": -1.0}), ("adakv", {"window": 2})):
        cache = make_cache(lab, method, 0.3, **options)
        together = decode(lab, cache, ids, mask)
        assert torch.isfinite(together).all()
        for layer in cache.compressed_layers():
            slots = layer.slots
            assert slots is not None and (slots.live() < layer.tokens_seen[:, None]).all()
        alone = decode(lab, make_cache(lab, method, 0.3, **options), ids[1:, PADS:], mask[1:, PADS:])
        assert near(alone[0], together[1]), method


def keys_at(model: PreTrainedModel, position: int) -> tuple[CompressedCache, list[Tensor]]:
    """Every compressed layer's key (H, d) of one token that stands at `position`."""
    cache = make_cache(model, "full")
    with torch.inference_mode():
        at = torch.tensor([[11], [position]], device=DEVICE)
        model(at[:1], position_ids=at[1:], past_key_values=cache)
    return cache, [layer.slots.keys[0, :, 0] for layer in cache.compressed_layers() if layer.slots is not None]


@pytest.mark.parametrize("family", [family for family in COMPRESSED if family not in NO_ROTATION])
def test_keys_turn_back_to_position_zero(family: str) -> None:
    """A token alone attends to itself wherever it stands: its keys differ by their layer's rotation and no more."""
    _, lab = models(family)
    _, at_zero = keys_at(lab, 0)
    cache, there = keys_at(lab, 9)
    for layer, zero, nine in zip(cache.compressed_layers(), at_zero, there, strict=True):
        rotary = layer.rotary.now()
        assert rotary is not None
        back = rotary.turn(nine, torch.full(nine.shape[:1], -9, device=DEVICE))
        torch.testing.assert_close(back, zero, rtol=1e-4, atol=1e-4)
        moved = bool((nine - zero).abs().max() > 1e-3)
        assert moved == bool((rotary.inverse_frequencies > 0).any()), "a layer that rotates, and one that does not"


@pytest.mark.parametrize("family", COMPRESSED)
def test_projected_queries_are_the_ones_that_attention_gets(family: str) -> None:
    """Of the first token, which no rotation turns."""
    _, lab = models(family)
    given: dict[int, Tensor] = {}
    made_of: dict[int, tuple[Any, Tensor]] = {}
    turns: dict[int, Rotary | None] = {}

    class Watcher:
        def attended(self, layer_idx: int, slots: Any, seen: Any, output: Tensor) -> None:
            given[layer_idx], made_of[layer_idx] = seen.query, (seen.module, seen.hidden_states)
            turns[layer_idx] = seen.rotary

        def compressed(self, *args: object) -> None: ...

    watch_hidden_states(lab)
    with torch.inference_mode():
        lab(torch.tensor([[11, 12]], device=DEVICE), past_key_values=make_cache(lab, "full", observer=Watcher()))
        assert given
        for layer, query in given.items():
            module, states = made_of[layer]
            rotary = turns[layer]
            projected = project_queries(module, states)
            asked = projected if rotary is None else rotary.lengthened(projected)
            torch.testing.assert_close(asked[:, :, 0], query[:, :, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "family", [family for family in MORE if family not in PLAIN and MORE[family][0] not in ("bloom", "mpt")]
)
def test_accumulated_scores_are_eager_attentions_column_sums(family: str) -> None:
    """Of a prompt; learned sinks take their share there too."""
    plain, lab = models(family)
    ids, _ = batch(1)
    ours = make_cache(lab, "h2o", 1.0)
    with torch.inference_mode():
        lab(ids, past_key_values=ours)
        maps = plain(ids, past_key_values=DynamicCache(config=plain.config), output_attentions=True).attentions
    for layer in ours.compressed_layers():
        slots = layer.slots
        assert slots is not None
        among = (
            layer.layer_idx if len(maps) == len(ours.layers) else layer.compressed_index
        )  # hybrids give those with attention
        expected = maps[among][0].sum(1).unflatten(0, (slots.position.shape[1], -1)).mean(1)
        torch.testing.assert_close(slots.score[0, :, :PROMPT], expected, rtol=1e-4, atol=1e-5)
