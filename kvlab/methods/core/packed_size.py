"""How many slots of a method stay native in a store, and what the others take."""

from __future__ import annotations

from pydantic import JsonValue

from kvlab.methods.core.pipeline import Pipeline
from kvlab.requests.budget import UNLIMITED
from kvlab.stores import Store, store_bytes


def native_slots(store: Store, pipeline: Pipeline, compress_every: int = 1) -> tuple[int, int]:
    """(slots of a head that are native at most, lots of which it may have only a part).

    While decoding: what gathers before it is packed, what two decisions have changed, and what the last one changed.
    A settler whose decisions then change no state says so by `still`.
    """
    if not pipeline.decode:
        return store.sinks + store.residual, 1
    settle = pipeline.can.settle
    if settle.changes_many:
        return UNLIMITED, 3
    changed = 0 if settle.still else compress_every - 1 + max(pipeline.buffer, 1)
    return store.sinks + max(store.residual, store.gathered, 2 * changed) + store.lot + 1 + changed, 3


def packed_sizes(store: Store, pipeline: Pipeline) -> dict[str, JsonValue] | None:
    """Sizes of a packed store as data, for a memory plan (`kvlab.planning.footprint.Packed`); None for native."""
    if not store.packs:
        return None
    native, lots = native_slots(store, pipeline)
    (own, shared), (twice, _) = (store_bytes(store, width, width) for width in (64, 128))
    number = (twice - own) / 64
    return {
        "native": native, "lot": store.lot, "lots": lots, "slot_bytes": own - 64 * number, "number_bytes": number,
        "lot_bytes": shared / 64, "lighter": pipeline.columns.lighter,
    }  # fmt: skip
