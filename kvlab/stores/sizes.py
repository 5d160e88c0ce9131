"""What a store's slots take, before there are any."""

from __future__ import annotations

from functools import lru_cache

import torch

from kvlab.stores.store import Store


@lru_cache
def store_bytes(store: Store, key_width: int, value_width: int) -> tuple[int, int]:
    """(bytes of a slot's own codes and scales, bytes that a lot of slots has together)."""
    own = shared = 0
    real = torch.ones(1, 1, store.lot, dtype=torch.bool)
    for code, width in ((store.keys, key_width), (store.values, value_width)):
        assert code is not None
        for name, tensor in code.encode(torch.zeros(1, 1, store.lot, width), real).items():
            if name in code.shared:
                shared += tensor.nbytes
            else:
                own += tensor[0, 0, 0].nbytes
    return own, shared


def bits_of(store: Store, width: int) -> float:
    """Bits a number of a key or value, what slots share included."""
    own, shared = store_bytes(store, width, width)
    return 8 * (own + shared / store.lot) / (2 * width)
