"""Slots of a packed table, whose keys and values are decoded on first access."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from kvlab.core.contract.plan import Plan
from kvlab.core.contract.view import Slots
from kvlab.core.stores.quantized_states import PackedStates, dense_states


class PackedSlots(Slots):
    """View of a packed table whose keys and values are decoded on first access; eviction-only plans never do."""

    @classmethod
    def of(cls, slots: Slots, keys: PackedStates, values: PackedStates) -> PackedSlots:
        """Combine the metadata of `slots` with these states."""
        return cls(**{**vars(slots), "keys": cast(Tensor, keys), "values": cast(Tensor, values)})

    def after(self, plan: Plan) -> Slots:
        """Result of a plan that changes no keys or values."""
        left = self.with_columns(valid=plan.keep)
        left.extra = self.extra | (plan.extra or {})
        if plan.log_mass is not None:
            left.log_mass = torch.where(plan.keep, plan.log_mass, self.log_mass)
        return left

    def decoded(self) -> Slots:
        """Decode everything, for the time of one layer's decision."""
        return Slots(**{name: getattr(self, name) for name in vars(self)})

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in ("keys", "values") and isinstance(value, PackedStates):
            value = dense_states(value)
            setattr(self, name, value)
        return value
