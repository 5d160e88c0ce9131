"""Budget of one layer: slots per head on the device, bounds on the host; resolved once from the first prompt."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from kvlab.cache.settings import LayerSettings
from kvlab.cache.table.slot_table import SlotTable
from kvlab.methods.core.packed_size import native_slots
from kvlab.methods.core.view import View
from kvlab.requests.budget import UNLIMITED, Sizes
from kvlab.stores import store_bytes


class Quota:
    """`slots` (B, H) each head may keep; `per_row`, `smallest` and `largest` are host bounds."""

    def __init__(self, slots: Tensor, per_row: list[int], smallest: int) -> None:
        self.slots, self.per_row, self.smallest, self.largest = slots, per_row, smallest, max(per_row)
        self.remembered: dict[Hashable, tuple[Tensor, Any]] = {}  # values derived from the budget, for `View.of_budget`

    @classmethod
    def of_layer(
        cls, settings: LayerSettings, rank: int, lengths: list[int], heads: int, device: torch.device, sizes: Sizes
    ) -> Quota:
        """Equal share for every head, for prompts of `lengths` tokens; `sizes` convert bytes to slots."""
        # Deciding every N steps needs N - 1 slots of slack inside the budget so that it is never exceeded.
        slack = settings.compress_every - 1 if settings.pipeline.decode else 0
        per_row = [_layer_budget(settings, rank, tokens, slack, sizes) for tokens in lengths]
        slots = torch.tensor(per_row, device=device)[:, None].expand(-1, heads).contiguous()
        return cls(slots, per_row, min(per_row))

    def part(self, slots: Tensor) -> Quota:
        """Quota of some of the streams, whose budgets are `slots`; reads them on the host."""
        part = Quota(slots, [0], 0)
        part._read()
        return part

    def allocate_heads(self, settings: LayerSettings, view: View) -> None:
        """Let the allocator assign unequal head budgets, once, from the prompt."""
        heads = settings.pipeline.allocate.head_budgets(view)
        if heads is not None:
            self.slots = heads.long()
            self._read()

    def map_rows(self, rows: Tensor) -> None:
        """Install budgets (B', H) after batch rows were selected, repeated or permuted."""
        changed = rows.shape[0] != self.slots.shape[0]
        self.slots = rows
        if changed:
            self._read()

    def _read(self) -> None:
        self.per_row = self.slots.amax(-1).tolist()
        self.smallest, self.largest = int(self.slots.min()), max(self.per_row)


def _layer_budget(settings: LayerSettings, rank: int, tokens: int, slack: int, sizes: Sizes) -> int:
    average = settings.budget.slots(tokens, sizes)
    if average >= UNLIMITED:
        return UNLIMITED
    return settings.pipeline.allocate.layer_budgets(max(1, average - slack), tokens, settings.num_layers)[rank]


def sizes_of(settings: LayerSettings, table: SlotTable, heads: int) -> Sizes:
    """Byte sizes of one KV head whose unquantized prompt is in `table`; `heads`: total over layers and rows."""
    keys, values = table.native_states()
    token, slot = sum(states[0, 0, 0].nbytes for states in (keys, values)), table.slot_bytes()
    store = settings.store
    beside = settings.pipeline.settled_bytes(keys, values) + settings.pipeline.columns.head_bytes
    if settings.pipeline.decode:  # tokens buffered in addition, and recalled queries
        beside += settings.pipeline.buffer * slot
        beside += settings.pipeline.recalled * settings.group * keys[0, 0, 0].nbytes
    if not store.packs:
        return Sizes(token, slot, slot, beside=beside, heads=heads)
    own, shared = store_bytes(store, keys.shape[-1], values.shape[-1])
    native, lots = native_slots(store, settings.pipeline, settings.compress_every)
    slot -= settings.pipeline.columns.lighter
    packed = slot - token + own + shared / store.lot
    return Sizes(token, slot, packed, native, beside + lots * shared, heads)
