"""Storage formats of settled slots: native or quantized."""

from kvlab.core.stores.store import ADAPTIVE, NATIVE, STORES, Store, bits_of, store_bytes, store_of, store_under

__all__ = ["ADAPTIVE", "NATIVE", "STORES", "Store", "bits_of", "store_bytes", "store_of", "store_under"]
