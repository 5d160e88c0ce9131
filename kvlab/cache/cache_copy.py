"""Copy a compressed cache, so that two texts can continue from the same state."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from transformers.cache_utils import LinearAttentionLayer

from kvlab.cache.buckets.bucket import Bucket
from kvlab.cache.cache import CompressedCache
from kvlab.cache.fan_out.uncompressed_layers import copy_states, take_states
from kvlab.cache.layers.compressed_layer import CompressedLayer
from kvlab.cache.settings import LayerSettings, Observer
from kvlab.cache.table.slot_table import SlotTable


def copy_cache(cache: CompressedCache, observer: Observer | None = None) -> CompressedCache:
    """A cache with the same slots in tensors of its own, watched by `observer`. No decision may be pending."""
    settings = replace(cache.settings, observer=observer, statistics=dict(cache.settings.statistics), pending=None)
    return copy_with_settings(cache, settings)


def copy_with_settings(cache: CompressedCache, settings: LayerSettings) -> CompressedCache:
    """The same with other settings, which all layers of the copy share."""
    own = copy.copy(cache)
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
    only = layer.buckets[0].quota is layer.quota
    own.quota = own.buckets[0].quota if only else copy.copy(layer.quota)
    own.generator = torch.Generator(device=layer.device)
    own.generator.set_state(layer.generator.get_state())
    return own


def _copy_bucket(bucket: Bucket) -> Bucket:
    own = copy.copy(bucket)
    own.quota, own.table, own.last_work = copy.copy(bucket.quota), _copy_table(bucket.table), ((), None)
    own.evicted_votes, own.guard_activations = bucket.evicted_votes.clone(), bucket.guard_activations.clone()
    return own


def _copy_table(table: SlotTable) -> SlotTable:
    own = copy.copy(table)
    own.map_rows(torch.Tensor.clone)
    own.shares_states = False
    return own
