"""What slots take in bytes, before there are any: for budgets that are given in bytes."""

from __future__ import annotations

from kvlab.cache.settings import LayerSettings
from kvlab.cache.table.slot_table import SlotTable
from kvlab.methods.core.packed_size import native_slots
from kvlab.requests.budget import Sizes
from kvlab.stores import store_bytes


def sizes_of(settings: LayerSettings, table: SlotTable, heads: int) -> Sizes:
    """Sizes of one KV head whose prompt lies in `table`, natively; `heads` are those of all layers and rows."""
    keys, values = table.handed()
    token, slot = sum(states[0, 0, 0].nbytes for states in (keys, values)), table.slot_bytes()
    store = settings.store
    beside = settings.pipeline.settled_bytes(keys, values) + settings.pipeline.columns.head_bytes
    if settings.pipeline.decode:  # tokens that wait on top, and queries that are looked at again
        beside += settings.pipeline.buffer * slot
        beside += settings.pipeline.recalled * settings.group * keys[0, 0, 0].nbytes
    if not store.packs:
        return Sizes(token, slot, slot, beside=beside, heads=heads)
    own, shared = store_bytes(store, keys.shape[-1], values.shape[-1])
    native, lots = native_slots(store, settings.pipeline, settings.compress_every)
    slot -= settings.pipeline.columns.lighter
    packed = slot - token + own + shared / store.lot
    return Sizes(token, slot, packed, native, beside + lots * shared, heads)
