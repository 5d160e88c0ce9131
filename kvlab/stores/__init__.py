"""Storage formats of settled slots: native or quantized."""

from kvlab.stores.store import AUTO, NATIVE, STORES, Store, bits_of, store_bytes, store_of, store_under

__all__ = ["AUTO", "NATIVE", "STORES", "Store", "bits_of", "store_bytes", "store_of", "store_under"]
