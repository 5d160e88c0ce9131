"""Moving what is valid into tables of its own, so that what was dropped is really freed."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.methods.core.slot_columns import FREE, there
from kvlab.methods.core.view import Slots


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
