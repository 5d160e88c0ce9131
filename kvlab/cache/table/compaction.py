"""Moving what is valid into tables of its own, so that what was dropped is really freed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.cache.table.slot_ops import at
from kvlab.methods.core.slot_columns import FREE, there
from kvlab.methods.core.view import Slots
from kvlab.stores.code import Code


def in_order(slots: Slots) -> Tensor:
    """(B, H, S) indices of the slots by position, the invalid ones last."""
    last = torch.iinfo(slots.position.dtype).max
    return slots.position.masked_fill(~there(slots.position), last).argsort(dim=-1, stable=True)


def pack(slots: Slots, order: Tensor, streams: Tensor | None, width: int, length: int, capacity: int) -> Slots:
    """A new table (N, width, capacity) of some streams, valid slots first; no head has more than `length` of them.

    `order` is what `in_order` says of `slots` (B, H, S). Stream n is heads n * width, ..., counted row by row; None
    stands for all rows. What lies behind the first `length` slots is room, and invalid.
    """
    place = torch.arange(capacity, device=order.device)
    source = place.clamp_max(order.shape[-1] - 1)
    if streams is None:
        index = order[..., source]
        packed = slots.map(lambda tensor: _gather(tensor, index))
    else:
        head = streams[:, None, None] * width + torch.arange(width, device=order.device)[:, None]
        row, head = head // order.shape[1], head % order.shape[1]  # (N, width, 1)
        index = order[row, head, source]
        packed = slots.map(lambda tensor: tensor[row, head, index])
    packed.position.masked_fill_(place >= length, FREE)
    return packed


def _gather(tensor: Tensor, index: Tensor) -> Tensor:
    return tensor.gather(2, index if tensor.dim() == 3 else index[..., None].expand(*index.shape, tensor.shape[-1]))


@dataclass(frozen=True)
class Squeeze:
    """Lots of each head that stay and that go (B, H, n), their slots, and what is coded anew of those that go."""

    stay: Tensor
    go: Tensor
    kept: Tensor  # (B, H, n) slots of lots that stay
    scattered: Tensor  # of lots that go
    real_first: Tensor  # of `scattered`: valid ones first, in whole lots
    index: Tensor  # (B, H, n) slots in their new order
    real: Tensor  # which of those coded anew are valid

    @classmethod
    def of(cls, valid: Tensor, lot: int, occupied: int, count: int) -> Squeeze | None:
        """Room for `count` slots among `valid` (B, H, S) ones, at most `occupied` a head; None where there is none."""
        used, lots = valid.shape[2], valid.shape[2] // lot
        most = min(occupied, used)  # valid slots of a head; its emptiest lots hold no more than their share
        enough = ((emptiest, -(-emptiest * most // used)) for emptiest in range(1, lots + 1))
        found = next(((many, few) for many, few in enough if (many - few) * lot >= count), None)
        if found is None:
            return None
        many, few = found
        order = valid.unflatten(2, (-1, lot)).sum(-1).argsort(dim=-1, descending=True, stable=True)
        stay, go = order[..., : lots - many], order[..., lots - many :]
        kept, scattered = slots_of(stay, lot), slots_of(go, lot)
        real_first = at(valid, scattered).view(torch.uint8).argsort(dim=-1, descending=True, stable=True)
        real_first = real_first[..., : few * lot]
        index = torch.cat([kept, at(scattered, real_first)], 2)
        return cls(stay, go, kept, scattered, real_first, index, at(valid, index[..., kept.shape[2] :]))

    def coded(self, code: Code, held: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
        """The codes `held` of states of `width` in their new order; lots whose slots share something are coded anew."""
        if code.group == 1:
            return {name: at(tensor, self.index) for name, tensor in held.items()}
        stay, go = (
            {name: at(tensor, lots if name in code.shared else slots) for name, tensor in held.items()}
            for lots, slots in ((self.stay, self.kept), (self.go, self.scattered))
        )
        anew = code.encode(at(code.decode(go, width), self.real_first), self.real)
        return {name: torch.cat([stay[name], anew[name]], 2) for name in held}


def slots_of(lots: Tensor, lot: int) -> Tensor:
    """(B, H, n * lot) slots of lots (B, H, n)."""
    return (lots[..., None] * lot + torch.arange(lot, device=lots.device)).flatten(2)
