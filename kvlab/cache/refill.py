"""A new token of every head in the slot that the last decision freed, which nobody has to look for."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kvlab.cache.executor import FRESH
from kvlab.methods.columns import key_lengths
from kvlab.methods.view import KEY_LENGTH, Slots


class Refill:
    """The columns of a contiguous table as lists, (B * H * S[, d]): the slots of all heads behind one another.

    `state` is the method's own state of a new slot.
    """

    def __init__(self, slots: Slots, state: Mapping[str, float]) -> None:
        own = slots.own() | {"keys": slots.keys, "values": slots.values}
        self.heads = slots.keys.shape[1]
        self.columns = {name: column.view(-1, *column.shape[3:]) for name, column in own.items()}
        heads, start = len(slots.keys) * self.heads, {**FRESH, **state}
        with torch.inference_mode(False):
            self.start = {
                name: column.new_full((heads, *column.shape[1:]), start[name])
                for name, column in self.columns.items()
                if name in start
            }

    def put(self, free: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> None:
        """Write `keys`, `values` (B, H, 1, d) of tokens at `position` (B,) over the slots `free` (B * H,)."""
        place = position if self.heads == 1 else position.repeat_interleave(self.heads)
        rows = keys.reshape(-1, keys.shape[-1])
        new = {"keys": rows, "values": values.reshape(-1, values.shape[-1]), "position": place, **self.start}
        if KEY_LENGTH in self.columns:
            new[KEY_LENGTH] = key_lengths(rows)
        for name, numbers in new.items():
            column = self.columns[name]
            column.index_copy_(0, free, numbers.to(column.dtype))
