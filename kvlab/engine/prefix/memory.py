"""Tokens and memory of a prefix's cache, as its header tells them."""

from __future__ import annotations

from kvlab.core.cache import CompressedCache
from kvlab.library.prefixes import LayerTable, PrefixHeader


def with_memory(header: PrefixHeader, cache: CompressedCache) -> PrefixHeader:
    """The header with the cache's tokens, the memory of its layers, and that of a full cache."""
    memory = cache.memory()
    layers = tuple(
        LayerTable(**{name: getattr(one, name) for name in LayerTable.model_fields}) for one in memory.layers
    )
    full = memory.sliding_bytes + cache.full_bytes()
    sizes = {"layers": layers, "other_bytes": memory.sliding_bytes, "full_bytes": full}
    return header.model_copy(update={"tokens": memory.logical_tokens, **sizes})
