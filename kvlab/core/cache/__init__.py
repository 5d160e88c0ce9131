"""Slot tables, the application of plans, and the transformers cache built on them."""

from kvlab.core.cache.cache import CacheMemory, CompressedCache, LayerMemory
from kvlab.core.cache.factory import make_cache

__all__ = ["CacheMemory", "CompressedCache", "LayerMemory", "make_cache"]
