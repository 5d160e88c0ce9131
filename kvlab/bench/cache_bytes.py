"""Count a cache's bytes from its tensors: every reachable storage once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from kvlab.core.cache import CompressedCache
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.settings import LayerSettings

# A layer's state per row and head besides its slots: budgets, tokens seen, votes lost.
PER_HEAD_BYTES = 64
PER_LAYER_BYTES = 1024


def tensor_bytes(thing: object) -> int:
    """Bytes of all tensor storages reachable from a cache or layer, without shared settings."""
    return sum(
        {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in _tensors(thing)}.values()
    )


def check_allocated_bytes(cache: CompressedCache) -> None:
    """Raise AssertionError if a layer's reported allocated bytes differ from its tensors'."""
    layers = {layer.layer_idx: layer for layer in cache.compressed_layers()}
    for memory in cache.memory().layers:
        layer = layers[memory.layer]
        extra = PER_LAYER_BYTES + PER_HEAD_BYTES * layer.streams.batch * layer.streams.heads
        held = tensor_bytes(layer)
        if not memory.allocated_bytes <= held <= memory.allocated_bytes + extra:
            raise AssertionError(
                f"layer {memory.layer} reports {memory.allocated_bytes:,} allocated bytes, its tensors take {held:,}"
            )


def live_bytes(cache: Cache, context: int) -> int:
    """Bytes that a decode step reads: of valid slots with metadata, or all tokens of a plain cache.

    Under a reading of those it chose, and of its index.
    """
    if isinstance(cache, CompressedCache):
        memory = cache.memory()
        return memory.bytes_read + memory.sliding_bytes
    return sum(_live(layer, context) for layer in cache.layers)


def block_bytes(cache: CompressedCache, block: int) -> int:
    """Bytes of one block of slots per head, over all layers."""
    memory = {m.layer: m for m in cache.memory().layers}
    total = 0
    for layer in cache.compressed_layers():
        own = memory[layer.layer_idx]
        total += round(block * own.live_bytes / max(own.live_slots, 1e-9))
    return total


def _live(layer: object, context: int) -> int:
    states = [getattr(layer, name, None) for name in ("keys", "values")]
    return sum(
        s[:, :, :1].numel() * s.element_size() * min(context, s.shape[2]) for s in states if isinstance(s, Tensor)
    )


def _tensors(thing: object) -> Iterator[Tensor]:
    waiting = [thing]
    met = set[int]()
    while waiting:
        item = waiting.pop()
        if id(item) in met or isinstance(item, LayerSettings | torch.Generator | type):
            continue
        met.add(id(item))
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, Mapping):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple | set):
            waiting.extend(item)
        elif isinstance(item, Cache | CompressedLayer) or type(item).__module__.startswith(
            ("kvlab.", "transformers.cache")
        ):
            waiting.extend(vars(item).values())
