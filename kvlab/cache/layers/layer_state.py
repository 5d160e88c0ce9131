"""What a layer holds and where it stands, as others read and change it: they know the state, not the layer.

What is read here is over all heads, whichever tables they lie in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvlab.attention.pass_view import PassSeen
from kvlab.cache.buckets.bucket import Bucket
from kvlab.cache.buckets.layer_budget import Quota
from kvlab.cache.settings import LayerSettings
from kvlab.cache.table.head_index import Streams
from kvlab.cache.table.packed_table import PackedTable
from kvlab.cache.table.slot_table import SlotTable
from kvlab.methods.core.view import References, Slots


class LayerState:
    """A layer of buckets, without what makes it a layer of transformers' cache."""

    # from the first tokens on
    streams: Streams
    tokens_seen: Tensor  # (B,)
    device: torch.device
    generator: torch.Generator

    def __init__(self, layer_idx: int, settings: LayerSettings, rank: int | None = None) -> None:
        self.layer_idx = layer_idx
        self.rank = layer_idx if rank is None else rank  # among the compressed layers, which share the budget
        self.settings = settings
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.buckets: list[Bucket] = []
        self.quota: Quota | None = None  # of the whole layer
        self.is_initialized = False
        self.cumulative_length = 0  # tokens seen, padding counted: transformers' logical length
        self.peak_bytes = 0
        self.prompt_end = 0  # `cumulative_length` at the end of the prompt
        self.lengths: list[int] = []  # real tokens of each row, on the host
        self.announced: list[int] = []  # real tokens of each row of a prompt that goes through the layer in blocks
        self.waiting = 0  # tokens appended since the last decision
        self.prompt_settled = False  # the decision about the prompt was made
        self.references: References | None = None  # queries of a rehearsal, until the decision
        self.marked: Mark | None = None  # where a rehearsal goes back to
        self.rotary = self.settings.rotary_of(self.layer_idx)

    @property
    def tables(self) -> list[SlotTable]:
        """The tables that hold this layer's slots; more than one where heads or rows differ in length."""
        return [bucket.table for bucket in self.buckets]

    @property
    def table(self) -> SlotTable | None:
        """The one table of a layer whose heads are equally long; None before the first token."""
        assert len(self.buckets) <= 1, "heads of unequal length lie in several tables: ask for `tables`"
        return self.buckets[0].table if self.buckets else None

    @property
    def slots(self) -> Slots | None:
        """All slots, free room included, (B, H, S, ...); None before the first token.

        A padded copy where heads lie in several tables, with slots that are not valid behind the shorter ones.
        """
        return self.streams.join_padded([table.whole() for table in self.tables]) if self.buckets else None

    @property
    def budget(self) -> Tensor | None:
        """(B, H) slots each head may keep; None before the first attention."""
        return None if self.quota is None else self.quota.slots

    @property
    def dropped(self) -> Tensor:
        """(B, H) votes lost to eviction."""
        return self.streams.join([bucket.dropped for bucket in self.buckets])

    @property
    def guard_activations(self) -> Tensor:
        """(B, H): how often a numerical guard replaced the method's own rule."""
        return self.streams.join([bucket.guard_activations for bucket in self.buckets])

    def per_head(self, read: Callable[[Slots], Tensor]) -> Tensor:
        """(B, H) what `read` makes of each table, whose answer is (N, W) for slots (N, W, S, ...)."""
        return self.streams.join([read(table.columns.weighed(table.slots)) for table in self.tables])

    def saved_bytes(self) -> Tensor:
        """(B, H) by how much less a store lets the valid slots take than `slot_bytes` each; 0 without one."""
        saved = [(table.saved_bytes(), table) for table in self.tables]
        return self.streams.join([table.live() * 0 if own is None else own for own, table in saved])

    def packed_bytes(self) -> tuple[int | None, int | None]:
        """Bytes of codes and of their scales; None where slots are native."""
        parts = [table.part_bytes() for table in self.tables if isinstance(table, PackedTable)]
        return (sum(part["codes"] for part in parts), sum(part["scales"] for part in parts)) if parts else (None, None)

    def table_bytes(self) -> int:
        """Bytes all tables take, metadata included."""
        return sum(table.table_bytes() for table in self.tables)

    def seen_again(self, seen: PassSeen) -> PassSeen:
        """The prompt's pass over the table as it lies in memory now; heads are alike before their first decision."""
        table = self.buckets[0].table
        bias = table.bias(table.visible())
        return replace(seen, key=table.states()[0], bias=bias, hides=not table.is_dense)

    def note_peak(self, beside: int) -> None:
        """Remember the most this layer's tables took, with `beside` bytes of others held for a moment."""
        self.peak_bytes = max(self.peak_bytes, self.table_bytes() + beside)


@dataclass(frozen=True)
class Mark:
    """A layer's state, but for its slots, which stay where they are."""

    width: int
    dense: bool
    whole: torch.dtype  # of positions
    tokens_seen: Tensor
    cumulative_length: int
    lengths: list[int]
    waiting: int
    rotary: Any
    states: dict[str, Any]  # a recurrent state beside the slots
    every: list[int]  # of each row's queries of the rehearsal one in so many is kept
