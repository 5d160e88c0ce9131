"""Snapshot of a table before a plan changes it in place: only the overwritten slots are copied."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from kvlab.cache.table.apply_plan import overwritten_slots
from kvlab.cache.table.slot_ops import at, wide
from kvlab.methods.core.plan import Plan
from kvlab.methods.core.view import Slots


class TableSnapshot(Slots):
    """Own copy of metadata; keys and values are the table's, with overwritten slots restored on access."""

    # By name, overwritten slots (B, H, E) and their old states (B, H, E, d).
    written: Mapping[str, tuple[Tensor, Tensor]] = MappingProxyType({})

    @classmethod
    def of(cls, slots: Slots, plan: Plan) -> Slots:
        """Snapshot `slots`; valid until the table changes again."""
        columns = {name: column.clone() for name, column in slots.own().items() if name not in slots.extra}
        kept = slots.with_columns(**columns, extra={name: column.clone() for name, column in slots.extra.items()})
        over = overwritten_slots(plan)
        if not over:
            return kept
        states = {"keys": slots.keys, "values": slots.values}
        made = object.__new__(cls)
        vars(made).update(vars(kept) | states)
        made.written = {name: (index, at(states[name], index)) for name, index in over.items()}
        return made

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name not in ("keys", "values") or name not in self.written:
            return value
        index, states = self.written[name]
        return value.scatter(2, wide(index, value), states)
