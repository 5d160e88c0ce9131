"""One layer's slot table in memory: room for new tokens, growth by blocks, what the host knows of its length."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kvlab.attention.slot_attention import NEVER
from kvlab.cache import executor
from kvlab.methods.view import Slots

BLOCK = 64


class SlotTable:
    """Slots plus the host's bounds on them, so that appending and attending never read a count from the device.

    `occupied` bounds the valid slots of any head. While `is_dense`, just the first `occupied` slots of every head are
    valid, and attention may leave the validity mask out. `weighted` says that some log mass may differ from 0.
    """

    def __init__(self, first: Slots) -> None:
        self.slots = first
        self.occupied = first.keys.shape[2]
        self.is_dense = True
        self.weighted = False
        self.head_state: dict[str, Tensor] = {}  # (B, H, ...) what the method keeps of a head beside its slots

    @property
    def capacity(self) -> int:
        """Slots per head the tensors have room for."""
        return self.slots.keys.shape[2]

    @property
    def width(self) -> int:
        """Slots per head that attention has to look at."""
        return self.occupied if self.is_dense else self.capacity

    def visible(self) -> Slots:
        """The first `width` slots; views of the table's own tensors."""
        width = self.width
        return self.slots if width == self.capacity else self.slots.map(lambda tensor: tensor[:, :, :width])

    def bias(self) -> Tensor | None:
        """(B, H, width) additive logit: log mass, -inf where a slot is not valid; None where it would be 0."""
        if self.is_dense and not self.weighted:
            return None
        slots = self.visible()
        return slots.log_mass.masked_fill(~slots.valid, NEVER)

    def append_one(self, new: Slots) -> None:
        """Write one token per head into a free slot, in place; grow by a block when there is none."""
        if self.occupied >= self.capacity:
            self.slots = executor.grow(self.slots, self.capacity + BLOCK)
        if self.is_dense:
            free = torch.full(new.votes.shape[:2], self.occupied, dtype=torch.int64, device=new.votes.device)
        else:
            free = (~self.slots.valid).to(torch.int8).argmax(-1)
        executor.write(self.slots, free, new)
        self.occupied += 1

    def append_many(self, new: Slots) -> None:
        """Put several tokens behind the table."""
        self.slots = executor.append(self.visible(), new)
        self.occupied, self.is_dense = self.capacity, False

    def mark_padding(self, row_valid: Tensor, position: Tensor) -> None:
        """The newest slots get validity (B, q) and positions (B, q)."""
        rows = row_valid.shape[1]
        self.slots.valid[:, :, -rows:] &= row_valid[:, None]
        self.slots.position[:, :, -rows:] = position[:, None].clamp_min(0).to(torch.int32)
        self.is_dense = False

    def store(self, changed: dict[str, Tensor]) -> None:
        """Take over new values of some of the visible slots' metadata."""
        slots = self.visible()
        for name, value in changed.items():
            (slots.extra[name] if name in slots.extra else getattr(slots, name)).copy_(value)

    def adopt(self, after: Slots, bound: int) -> None:
        """Take over the visible slots as a plan left them; no head has more than `bound` valid ones."""
        own = self.visible()
        before = own.metadata() | {"keys": own.keys, "values": own.values}
        for name, value in (after.metadata() | {"keys": after.keys, "values": after.values}).items():
            if before[name].data_ptr() != value.data_ptr():
                before[name].copy_(value)
        self.is_dense = False
        self.occupied = min(self.occupied, bound)

    def compact(self, room: int) -> None:
        """Move the valid slots into a new table with `room` more slots than `occupied`."""
        self.slots = executor.compact(self.slots, self.occupied + room)

    def detach(self) -> None:
        """Give every tensor memory of its own: a value is often a slice of a fused projection it would keep alive."""
        self.slots = self.slots.map(torch.Tensor.contiguous)

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Keep, repeat or permute batch rows."""
        self.slots = self.slots.map(change)
        self.head_state = {name: change(tensor) for name, tensor in self.head_state.items()}

    def table_bytes(self) -> int:
        """Bytes the tensors take, metadata and the heads' own state included."""
        return _bytes(self.slots.keys, self.slots.values, *self.slots.metadata().values()) + self.head_bytes()

    def head_bytes(self) -> int:
        """Bytes of the heads' own state, which does not grow with the slots."""
        return _bytes(*self.head_state.values())

    def slot_bytes(self) -> int:
        """Bytes of one slot of one head, metadata included."""
        states = sum(tensor.shape[-1] * tensor.element_size() for tensor in (self.slots.keys, self.slots.values))
        return states + sum(tensor.element_size() for tensor in self.slots.metadata().values())


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def new_slots(keys: Tensor, values: Tensor, position: Tensor, extra: Callable[[Tensor], dict[str, Tensor]]) -> Slots:
    """A table of fresh tokens: (B, H, q, d) states at positions (B, q), one vote each, no log mass, no score."""
    zeros = torch.zeros(keys.shape[:3], device=keys.device)
    return Slots(
        keys=keys,
        values=values,
        position=position[:, None].expand(keys.shape[:3]).to(torch.int32).contiguous(),
        votes=zeros + 1,
        log_mass=zeros.clone(),
        score=zeros.clone(),
        valid=torch.ones(keys.shape[:3], dtype=torch.bool, device=keys.device),
        extra=extra(zeros),
    )
