"""What a layer holds, as others read it: over all heads, whichever tables they lie in."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kvlab.cache.bucket import Bucket
from kvlab.cache.packed_table import PackedTable
from kvlab.cache.quota import Quota
from kvlab.cache.streams import Streams
from kvlab.cache.table import SlotTable
from kvlab.methods.view import Slots


class Contents:
    """Read-only properties of a layer of buckets."""

    buckets: list[Bucket]
    streams: Streams
    quota: Quota | None  # of the whole layer

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
        return self.streams.join([read(table.slots) for table in self.tables])

    def saved_bytes(self) -> Tensor:
        """(B, H) by how much less a store lets the valid slots take than `slot_bytes` each; 0 without one."""
        saved = [(table.saved_bytes(), table) for table in self.tables]
        return self.streams.join([table.slots.live() * 0 if own is None else own for own, table in saved])

    def packed_bytes(self) -> tuple[int | None, int | None]:
        """Bytes of codes and of their scales; None where slots are native."""
        parts = [table.part_bytes() for table in self.tables if isinstance(table, PackedTable)]
        return (sum(part["codes"] for part in parts), sum(part["scales"] for part in parts)) if parts else (None, None)

    def table_bytes(self) -> int:
        """Bytes all tables take, metadata included."""
        return sum(table.table_bytes() for table in self.tables)
