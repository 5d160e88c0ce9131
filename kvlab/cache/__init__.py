"""Slot tables, the application of plans, and the transformers cache built on them."""

from kvlab.cache.cache import CacheMemory, CompressedCache, LayerMemory
from kvlab.cache.factory import make_cache

__all__ = ["CacheMemory", "CompressedCache", "LayerMemory", "make_cache"]
