"""Copy a compressed cache, so that two texts can continue from the same state, and rows of transformers' own layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from kvlab.core.cache.buckets.bucket import Bucket
from kvlab.core.cache.cache import CompressedCache
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.layers.decisions import compress_if_due
from kvlab.core.cache.settings import LayerSettings, Observer
from kvlab.core.contract.pipeline import Pipeline


def copy_cache(cache: CompressedCache, observer: Observer | None = None) -> CompressedCache:
    """A cache with the same slots in tensors of its own, watched by `observer`. No decision may be pending."""
    settings = replace(cache.settings, observer=observer, statistics=dict(cache.settings.statistics), pending=None)
    return copy_with_settings(cache, settings)


def copy_with_settings(cache: CompressedCache, settings: LayerSettings) -> CompressedCache:
    """The same with other settings, which all layers of the copy share."""
    own = copy.copy(cache)
    settings.held = settings.held.copy()
    own.settings, own.layers = settings, [_copy_layer(layer, settings) for layer in cache.layers]
    return own


def _copy_layer(layer: Any, settings: LayerSettings) -> Any:
    if not isinstance(layer, CompressedLayer):
        return copy.deepcopy(layer)
    own = copy.copy(layer)
    own.settings, own.rotary, own.lengths = settings, copy.copy(layer.rotary), list(layer.lengths)
    if isinstance(layer, LinearAttentionLayer):
        take_states(own, copy_states(layer))
    if not layer.is_initialized:
        return own
    own.tokens_seen, own.buckets = layer.tokens_seen.clone(), [_copy_bucket(bucket) for bucket in layer.buckets]
    only = layer.buckets[0].head_budgets is layer.head_budgets
    own.head_budgets = own.buckets[0].head_budgets if only else copy.copy(layer.head_budgets)
    own.generator = torch.Generator(device=layer.device)
    own.generator.set_state(layer.generator.get_state())
    return own


def _copy_bucket(bucket: Bucket) -> Bucket:
    own = copy.copy(bucket)
    own.head_budgets, own.table, own.last_work = copy.copy(bucket.head_budgets), copy.copy(bucket.table), ((), None)
    own.table.map_rows(torch.Tensor.clone)
    own.table.shares_states = False
    own.index = None if bucket.index is None else {name: part.clone() for name, part in bucket.index.items()}
    own.evicted_votes, own.guard_activations = bucket.evicted_votes.clone(), bucket.guard_activations.clone()
    return own


STATES = ("keys", "values")
RECURRENT = ("conv_states", "recurrent_states")  # dictionaries of states by number


def select_rows(layer: Any, rows: Sequence[int]) -> Any:
    """A copy of the layer with batch rows `rows`; rows may repeat."""
    return _changed([layer], lambda parts: parts[0][torch.tensor(rows, dtype=torch.int64, device=parts[0].device)])


def join_layers(layers: Sequence[Any]) -> Any:
    """A copy of the first layer with the batch rows of all layers, which have seen equally many tokens."""
    return _changed(layers, torch.cat)


def take_states(layer: Any, other: Any) -> None:
    """Let a layer with a recurrent state use that of another one."""
    for name in vars(LinearAttentionLayer(1)):
        setattr(layer, name, getattr(other, name))


def copy_states(layer: Any) -> LinearAttentionLayer:
    """A layer with a copy of another one's recurrent state."""
    own = LinearAttentionLayer(layer.number_of_states)
    for name in vars(own):
        setattr(own, name, copy.deepcopy(getattr(layer, name)))
    return own


def _changed(layers: Sequence[Any], change: Callable[[list[Tensor]], Tensor]) -> Any:
    """A copy of the first layer; each of its states is `change` of that state in all layers."""
    own = copy.copy(layers[0])
    for name in STATES:
        if isinstance(getattr(own, name, None), Tensor):
            setattr(own, name, change([getattr(layer, name) for layer in layers]))
    for name in RECURRENT:
        if hasattr(own, name):
            states = {number: [getattr(layer, name)[number] for layer in layers] for number in getattr(own, name)}
            setattr(own, name, {n: None if parts[0] is None else change(parts) for n, parts in states.items()})
    for name, flags in vars(own).items():
        if isinstance(flags, dict) and name not in RECURRENT:
            setattr(own, name, dict(flags))
    return own


def defer_decision(cache: CompressedCache) -> CompressedCache:
    """Make the empty, batch-of-one `cache` stop before it decides about its prompt."""
    cache.settings.stays_pending = True
    return cache


@dataclass(frozen=True)
class PromptCache:
    """A cache that has read its prompt; continuing from it does not change it."""

    prompt_cache: CompressedCache

    @torch.inference_mode()
    def cache(self, pipeline: Pipeline, observer: Observer | None = None) -> CompressedCache:
        """A cache that decides about the prompt by `pipeline`, with the score and slot state of the prompt's cache.

        `observer` observes what comes after that decision.
        """
        settings = self.prompt_cache.settings
        pending = self.prompt_cache.settings.pending
        assert pending is not None
        settings = replace(
            settings,
            pipeline=pipeline,
            pending=None,
            stays_pending=False,
            second_pass=None,
            statistics=dict(settings.statistics),
        )
        cache = copy_with_settings(self.prompt_cache, settings)
        for layer in cache.compressed_layers():
            visible = [table.visible() for table in layer.tables]
            compress_if_due(layer, [layer.seen_again(pending[layer.rank].layer_pass)], visible, None, True)
        settings.observer = observer
        return cache
