"""Tokens and memory of a prefix's cache, as its header tells them."""

from __future__ import annotations

from kvlab.core.cache import CompressedCache
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.contract.slot_columns import integer_dtype
from kvlab.library.prefixes import LayerTable, PrefixHeader


def with_memory(header: PrefixHeader, cache: CompressedCache) -> PrefixHeader:
    """The header with the cache's tokens, the memory of its layers, and that of a full cache."""
    memory = cache.memory()
    layers = tuple(
        LayerTable(**{name: getattr(one, name) for name in LayerTable.model_fields}) for one in memory.layers
    )
    full = memory.sliding_bytes + sum(map(_full_bytes, cache.compressed_layers()))
    sizes = {"layers": layers, "other_bytes": memory.sliding_bytes, "full_bytes": full}
    return header.model_copy(update={"tokens": memory.logical_tokens, **sizes})


def _full_bytes(layer: CompressedLayer) -> int:
    """Bytes of a full cache of this layer: keys, values and positions of all tokens that it has seen."""
    token = sum(part.shape[-1] * part.element_size() for part in layer.tables[0].native_states())
    token += integer_dtype(layer.cumulative_length).itemsize
    return token * layer.streams.batch * layer.streams.heads * layer.cumulative_length
