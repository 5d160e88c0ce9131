"""What slots take in bytes, before there are any: for budgets that are given in bytes."""

from __future__ import annotations

from functools import lru_cache

import torch

from kvlab.budget import UNLIMITED, Sizes
from kvlab.cache.settings import LayerSettings
from kvlab.cache.table import SlotTable
from kvlab.stores import Store


def sizes_of(settings: LayerSettings, table: SlotTable, heads: int) -> Sizes:
    """Sizes of one KV head whose prompt lies in `table`, natively; `heads` are those of all layers and rows."""
    keys, values = table.handed()
    token, slot = sum(states[0, 0, 0].nbytes for states in (keys, values)), table.slot_bytes()
    settle, store = settings.pipeline.settle, settings.store
    beside = settle.head_bytes(keys, values, settings.pipeline.select) if hasattr(settle, "head_bytes") else 0
    if not store.packs:
        return Sizes(token, slot, slot, beside=beside, heads=heads)
    own, shared = store_bytes(store, keys.shape[-1], values.shape[-1])
    native, lots = store.sinks + store.residual, 1
    if settings.pipeline.decode:
        # What has gathered before it is packed, what two decisions have changed, and lots that holes keep from closing.
        changed = settings.compress_every
        native = store.sinks + max(store.residual, 2 * changed) + store.lot + 1 + changed
        lots = 3
        if getattr(settle, "changes_many", False):
            native = UNLIMITED
    packed = slot - token + own + shared / store.lot
    return Sizes(token, slot, packed, native, beside + lots * shared, heads)


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
