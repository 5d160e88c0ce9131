"""Several tables and the passes over them as one, whose keys and values stay where they are until somebody looks.

Slots keep their places in their own table and short heads get invalid ones behind. Joined keys and values are a padded
copy of the layer; what is asked of them slot by slot is asked of each table, and only the answers are joined.
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
    """Slots (B, H, S) of several tables: the metadata joined; keys and values too once somebody asks for them whole."""

    streams: Streams
    parts: Sequence[Slots] = ()

    @classmethod
    def of(cls, streams: Streams, parts: Sequence[Slots]) -> JoinedSlots:
        """The slots of all tables, in the order of the buckets of `streams`."""
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
    """The passes over several tables as one; its keys are joined once somebody asks for them whole."""

    slots: JoinedSlots
    parts: Sequence[PassSeen] = ()

    @classmethod
    def of(cls, slots: JoinedSlots, parts: Sequence[PassSeen], **whole: Any) -> JoinedPass:
        """What `parts` attended to; `whole` is what differs from the first of them beside the keys."""
        common = {one.name: getattr(parts[0], one.name) for one in fields(PassSeen) if one.init and one.name != "key"}
        made = cls(**common | whole, key=NONE_YET)
        made.slots, made.parts = slots, parts
        return made

    def with_state(self, state: Any) -> JoinedPass:
        """The same with another state beside the slots."""
        made = object.__new__(JoinedPass)
        vars(made).update(vars(self) | {"low_rank": state})
        return made

    def logits_at_slots(self, slots: Slots) -> Tensor:
        """As the pass's over one table; asked of each table by its own queries."""
        if not isinstance(slots, JoinedSlots) or not slots.parts or not self.parts:
            return super().logits_at_slots(slots)
        pairs = zip(self.parts, slots.parts, strict=True)
        found = [seen.logits_at_slots(part)[:, :, :, 0].transpose(2, 3) for seen, part in pairs]  # (N, W, S, G)
        return slots.streams.join_padded(found).transpose(2, 3)[:, :, :, None].contiguous()

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return self.slots.keys if value is None and name == "key" else value


def each_table(slots: Slots, work: Callable[..., Tensor], *beside: Tensor) -> Tensor:
    """(B, H, ...) what `work` makes of the slots (N, W, S, ...), table by table where they lie in several.

    It is also given the heads' parts of `beside` (B, H, ...), which are as long as the longest table.
    """
    if not isinstance(slots, JoinedSlots) or not slots.parts:
        return work(slots, *beside)
    apart = [slots.streams.by_head(one) for one in beside]
    return slots.streams.join_padded([work(*given) for given in zip(slots.parts, *apart, strict=True)])


def states_at(slots: Slots, name: str, index: Tensor) -> Tensor:
    """(B, H, E, d): the `keys` or `values` of slots `index` (B, H, E)."""
    return each_table(slots, lambda part, where: at(getattr(part, name), where), index)


def measured(slots: Slots, name: str, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """(B, H, S): what `measure` makes of each slot's key or value, from `keys` or `values` (N, W, S, d)."""
    return each_table(slots, lambda part: measure(getattr(part, name)))
