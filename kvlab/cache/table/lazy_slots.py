"""Slots whose keys and values are decoded when somebody looks at them, and not before."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from kvlab.methods.core.plan import Plan
from kvlab.methods.core.view import Slots
from kvlab.stores.quantized_states import HeldStates, whole


class HeldSlots(Slots):
    """A view of a packed table. A plan that only drops slots never asks for keys or values."""

    @classmethod
    def of(cls, slots: Slots, keys: HeldStates, values: HeldStates) -> HeldSlots:
        """The metadata of `slots` beside these states."""
        return cls(**{**vars(slots), "keys": cast(Tensor, keys), "values": cast(Tensor, values)})

    def after(self, plan: Plan) -> Slots:
        """What a plan that changes no state leaves."""
        left = self.with_columns(valid=plan.keep)
        left.extra = self.extra | (plan.extra or {})
        if plan.log_mass is not None:
            left.log_mass = torch.where(plan.keep, plan.log_mass, self.log_mass)
        return left

    def decoded(self) -> Slots:
        """All of it in memory, for as long as one layer's decision takes."""
        return Slots(**{name: getattr(self, name) for name in vars(self)})

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in ("keys", "values") and isinstance(value, HeldStates):
            value = whole(value)
            setattr(self, name, value)
        return value
