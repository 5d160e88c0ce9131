"""A new token of every head in the slot that the last decision freed, which nobody has to look for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from kvlab.cache.executor import FRESH
from kvlab.cache.on_host import compiled
from kvlab.methods.columns import key_lengths
from kvlab.methods.view import KEY_LENGTH, Slots

# What numpy has no type for is moved as whole numbers of as many bits.
MOVED_AS = {torch.bfloat16: torch.int16}


class Refill:
    """The columns of a contiguous table on a CPU as arrays of the same memory, (B * H * S[, d]).

    The slots of all heads lie behind one another. A few numbers are written through an array in a tenth of the time
    that a tensor takes. `state` is the method's own state of a new slot.
    """

    def __init__(self, slots: Slots, state: Mapping[str, float]) -> None:
        own = slots.own() | {"keys": slots.keys, "values": slots.values}
        self.heads = slots.keys.shape[1]
        flat = {name: column.view(-1, *column.shape[3:]) for name, column in own.items()}
        self.columns = {name: _array(column) for name, column in flat.items()}
        start = {name: number for name, number in {**FRESH, **state}.items() if name in flat}
        self.start = {name: _array(flat[name].new_full((), number)) for name, number in start.items()}
        self.compiled = compiled() if slots.keys.dtype == torch.float32 else None

    def put(self, free: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> None:
        """Write `keys`, `values` (B, H, 1, d) of tokens at `position` (B,) over the slots `free` (B * H,)."""
        own, slots, place = self.columns, free.numpy(), position.numpy()
        new = _rows(keys), _rows(values)
        states = own["keys"], own["values"], own["position"]
        if self.compiled is not None:
            self.compiled.fill(*states, slots, *new, place, self.heads)
        else:
            for column, numbers in zip(states, (*new, place.repeat(self.heads)), strict=True):
                column[slots] = numbers
        if KEY_LENGTH in own:
            own[KEY_LENGTH][slots] = key_lengths(keys).numpy().reshape(-1)
        for name, number in self.start.items():
            own[name][slots] = number


def _rows(states: Tensor) -> np.ndarray:
    """(B * H, d) of (B, H, 1, d)."""
    return _array(states.reshape(-1, states.shape[-1]))


def _array(tensor: Tensor) -> np.ndarray:
    """The same memory, where `tensor` is contiguous."""
    kind = MOVED_AS.get(tensor.dtype)
    return (tensor if kind is None else tensor.view(kind)).numpy()
