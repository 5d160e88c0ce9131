"""Stores: how settled slots are held in memory, native or in fewer bits."""

from kvlab.stores.store import NATIVE, STORES, Store, store_of

__all__ = ["NATIVE", "STORES", "Store", "store_of"]
