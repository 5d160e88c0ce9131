"""Several tables and their passes viewed as one; keys and values are joined only on access.

Slots keep their place in their own table, and short heads are padded with invalid slots. Joined keys and values are a
padded copy of the layer, so per-slot questions are answered table by table and only the results are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, cast

from torch import Tensor

from kvlab.attention.pass_view import PassSeen
from kvlab.cache.table.head_index import Streams
from kvlab.cache.table.slot_ops import at
from kvlab.methods.core.view import Slots

STATES = ("keys", "values")
NONE_YET = cast(Tensor, None)


class JoinedSlots(Slots):
    """Slots (B, H, S) of several tables: metadata joined at once, keys and values on first access."""

    streams: Streams
    parts: Sequence[Slots] = ()

    @classmethod
    def of(cls, streams: Streams, parts: Sequence[Slots]) -> JoinedSlots:
        """Join the slots of all tables, in the order of the buckets of `streams`."""
        names = [one.name for one in fields(Slots) if one.name not in STATES]
        columns = {name: streams.join_padded([getattr(part, name) for part in parts]) for name in names}
        made = cls(keys=NONE_YET, values=NONE_YET, **columns)
        made.streams, made.parts = streams, parts
        return made

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if value is None and name in STATES:
            value = self.streams.join_padded([getattr(part, name) for part in self.parts])
            setattr(self, name, value)
        return value


class JoinedPass(PassSeen):
    """Passes over several tables as one; keys are joined on first access."""

    slots: JoinedSlots
    parts: Sequence[PassSeen] = ()

    @classmethod
    def of(cls, slots: JoinedSlots, parts: Sequence[PassSeen], **whole: Any) -> JoinedPass:
        """Join passes; `whole` overrides fields of the first one other than its keys."""
        common = {one.name: getattr(parts[0], one.name) for one in fields(PassSeen) if one.init and one.name != "key"}
        made = cls(**common | whole, key=NONE_YET)
        made.slots, made.parts = slots, parts
        return made

    def with_state(self, state: Any) -> JoinedPass:
        """Copy with another low-rank state."""
        made = object.__new__(JoinedPass)
        vars(made).update(vars(self) | {"low_rank": state})
        return made

    def logits_at_slots(self, slots: Slots) -> Tensor:
        """As for a single table; computed per table with its own queries."""
        if not isinstance(slots, JoinedSlots) or not slots.parts or not self.parts:
            return super().logits_at_slots(slots)
        pairs = zip(self.parts, slots.parts, strict=True)
        found = [seen.logits_at_slots(part)[:, :, :, 0].transpose(2, 3) for seen, part in pairs]  # (N, W, S, G)
        return slots.streams.join_padded(found).transpose(2, 3)[:, :, :, None].contiguous()

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return self.slots.keys if value is None and name == "key" else value


def per_table(slots: Slots, work: Callable[..., Tensor], *beside: Tensor) -> Tensor:
    """Apply `work` to slots (N, W, S, ...) of each table and join the results, (B, H, ...).

    `work` also gets the parts of the tensors `beside` (B, H, ...), which are as long as the longest table.
    """
    if not isinstance(slots, JoinedSlots) or not slots.parts:
        return work(slots, *beside)
    apart = [slots.streams.by_head(one) for one in beside]
    return slots.streams.join_padded([work(*given) for given in zip(slots.parts, *apart, strict=True)])


def states_at(slots: Slots, name: str, index: Tensor) -> Tensor:
    """`keys` or `values` (B, H, E, d) at slots `index` (B, H, E)."""
    return per_table(slots, lambda part, where: at(getattr(part, name), where), index)


def measured(slots: Slots, name: str, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `measure` to each slot's key or value, `keys` or `values` (N, W, S, d); returns (B, H, S)."""
    return per_table(slots, lambda part: measure(getattr(part, name)))
