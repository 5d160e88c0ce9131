"""Native slots of a method in a quantized store, and the sizes of the others."""

from __future__ import annotations

from pydantic import JsonValue

from kvlab.core.budget import UNLIMITED
from kvlab.core.contract.parts import optional
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.stores import Store, store_bytes


def native_slots(store: Store, pipeline: Pipeline, compress_every: int = 1) -> tuple[int, int]:
    """(most native slots per head, lots that may be partly filled).

    While decoding: slots gathered before packing, slots changed by two decisions, and slots changed by the last one.
    Settlers declare by `still` that decisions change no state.
    """
    if not pipeline.decode:
        return store.sinks + store.residual, 1
    if optional(pipeline.settle, "changes_many"):
        return UNLIMITED, 3
    changed = 0 if optional(pipeline.settle, "still") else compress_every - 1 + max(pipeline.buffer, 1)
    if store.gathered >= UNLIMITED:  # generated tokens are never packed
        return UNLIMITED, 3
    return store.sinks + max(store.residual, store.gathered, 2 * changed) + store.lot + 1 + changed, 3


def packed_sizes(store: Store, pipeline: Pipeline) -> dict[str, JsonValue] | None:
    """Sizes of a quantized store for a memory plan (`kvlab.planning.footprint.Packed`); None for native."""
    if not store.packs:
        return None
    native, lots = native_slots(store, pipeline)
    (own, shared), (twice, _) = (store_bytes(store, width, width) for width in (64, 128))
    number = (twice - own) / 64
    return {
        "native": native,
        "lot": store.lot,
        "lots": lots,
        "slot_bytes": own - 64 * number,
        "number_bytes": number,
        "lot_bytes": shared / 64,
        "head_bytes": store.head_bytes(64, 64) / 64,
        "lighter": pipeline.columns.lighter,
    }
