"""The slot store, the executor of plans, and the transformers cache made of them."""

from kvlab.cache.cache import CacheMemory, CompressedCache, LayerMemory
from kvlab.cache.factory import make_cache

__all__ = ["CacheMemory", "CompressedCache", "LayerMemory", "make_cache"]
