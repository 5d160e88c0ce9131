"""One layer's slot table in memory: room for new tokens, growth by blocks, what the host knows of its length."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from kvlab.cache import executor
from kvlab.cache.pack import pack
from kvlab.growth import room_to_grow
from kvlab.methods.view import NEVER, Slots


class SlotTable:
    """Slots plus the host's bounds on them, so that appending and attending never read a count from the device.

    Only the first `width` slots of a head are ever looked at; what lies behind is room to grow. `occupied` bounds the
    valid slots of any head. While `is_dense`, all of the first `width` are valid, and attention may leave the validity
    mask out. `weighted` says that some log mass may differ from 0.
    """

    def __init__(self, first: Slots) -> None:
        self.slots = first
        self.width = self.occupied = first.keys.shape[2]
        self.is_dense = True
        self.weighted = False
        self.head_state: dict[str, Tensor] = {}  # (B, H, ...) what the method keeps of a head beside its slots
        self.never = first.keys.new_full((), NEVER, dtype=torch.float32)  # a number that lies on the device already
        self.left_bytes = 0  # of the table the last growth copied: for a moment both were held

    @property
    def capacity(self) -> int:
        """Slots per head the tensors have room for."""
        return self.slots.keys.shape[2]

    def visible(self) -> Slots:
        """The first `width` slots; views of the table's own tensors."""
        width = self.width
        return self.slots if width == self.capacity else self.slots.map(lambda tensor: tensor[:, :, :width])

    def bias(self) -> Tensor | None:
        """`Slots.bias` of the first `width` slots; None where it would be 0."""
        return None if self.is_dense and not self.weighted else self.visible().bias(self.never)

    def append_one(self, keys: Tensor, values: Tensor, position: Tensor, extra: Mapping[str, Tensor | float]) -> None:
        """Write one token per head into a free slot, in place; where every slot may be taken, the next one is used.

        `keys`, `values` (B, H, 1, d) at `position` (B,); `extra` is the method's own state of a new slot.
        """
        self.left_bytes = 0
        if self.occupied == self.width:
            self._make_room(1, room_to_grow(self.width))
            self.width += 1
        if self.is_dense:
            free = torch.full((*keys.shape[:2], 1), self.occupied, dtype=torch.int64, device=keys.device)
        else:  # the first that is not valid
            free = self.slots.valid[:, :, : self.width].view(torch.uint8).argmin(-1, keepdim=True)
        place = position[:, None, None].expand(*keys.shape[:2], 1)
        executor.write(self.slots, free, {"keys": keys, "values": values, "position": place, **_FRESH, **extra})
        self.occupied += 1

    def append_many(self, new: Slots) -> None:
        """Put several tokens behind the slots in use."""
        rows, width, self.left_bytes = new.keys.shape[2], self.width, 0
        self._make_room(rows, 0)
        arrived = _tensors(new)
        for name, tensor in _tensors(self.slots).items():
            tensor[:, :, width : width + rows] = arrived[name]
        self.width, self.occupied = width + rows, self.occupied + rows

    def reserve(self, capacity: int) -> None:
        """Room for `capacity` slots, taken at once."""
        self._make_room(capacity - self.width, 0)

    def _make_room(self, rows: int, more: int) -> None:
        """Room for `rows` more slots; a table that is too short is copied into one with `more` beyond them."""
        if self.width + rows > self.capacity:
            self.left_bytes = self.table_bytes()
            self.slots = executor.grow(self.visible(), self.width + rows + more)

    def mark_padding(self, row_valid: Tensor, position: Tensor) -> None:
        """The newest slots get validity (B, q) and positions (B, q)."""
        first = self.width - row_valid.shape[1]
        self.slots.valid[:, :, first : self.width] &= row_valid[:, None]
        self.slots.position[:, :, first : self.width] = position[:, None].clamp_min(0).to(torch.int32)
        self.is_dense = False

    def store(self, changed: dict[str, Tensor]) -> None:
        """Take over new values of some of the visible slots' metadata."""
        slots = self.visible()
        for name, value in changed.items():
            (slots.extra[name] if name in slots.extra else getattr(slots, name)).copy_(value)

    def adopt(self, after: Slots, bound: int) -> None:
        """Take over the visible slots as a plan left them; no head has more than `bound` valid ones."""
        own = self.visible()
        before = _tensors(own)
        for name, value in _tensors(after).items():
            if before[name].data_ptr() != value.data_ptr():
                before[name].copy_(value)
        self.is_dense = False
        self.occupied = min(self.occupied, bound)

    def note_heads(self, state: Mapping[str, Tensor]) -> None:
        """Take over what a plan notes of each head, in place where there is something of that shape already."""
        for name, value in state.items():
            own = self.head_state.get(name)
            if own is not None and own.shape == value.shape and own.dtype == value.dtype:
                own.copy_(value)
            else:
                self.head_state[name] = value

    def packed(
        self, order: Tensor, room: int, lengths: list[int], streams: list[int] | None = None, width: int = 0
    ) -> SlotTable:
        """A new table of the valid slots of some streams (default all), with `room` more slots than the longest has.

        `lengths` are the valid slots of each of their heads, `order` is `pack.in_order` of the table's slots.
        """
        index = None if streams is None else torch.tensor(streams, device=order.device)
        longest = max(lengths)
        table = SlotTable(pack(self.slots, order, index, width, longest, longest + room))
        table.width = table.occupied = longest
        table.is_dense, table.weighted = min(lengths) == longest, self.weighted
        if streams is None:
            table.head_state = self.head_state
        return table

    def detach(self) -> None:
        """Give every tensor memory of its own: a value is often a slice of a fused projection it would keep alive."""
        self.slots = self.slots.map(torch.Tensor.contiguous)

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Keep, repeat or permute batch rows."""
        self.slots = self.slots.map(change)
        self.head_state = {name: change(tensor) for name, tensor in self.head_state.items()}

    def table_bytes(self) -> int:
        """Bytes the tensors take, metadata and the heads' own state included."""
        return _bytes(*_tensors(self.slots).values()) + self.head_bytes()

    def head_bytes(self) -> int:
        """Bytes of the heads' own state, which does not grow with the slots."""
        return _bytes(*self.head_state.values())

    def slot_bytes(self) -> int:
        """Bytes of one slot of one head, metadata included."""
        states = sum(tensor.shape[-1] * tensor.element_size() for tensor in (self.slots.keys, self.slots.values))
        own = (tensor[:1, :1, :1] for tensor in self.slots.metadata().values())
        return states + _bytes(*own)


def _tensors(slots: Slots) -> dict[str, Tensor]:
    return slots.metadata() | {"keys": slots.keys, "values": slots.values}


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# What a token of its own starts with.
_FRESH: Mapping[str, float] = {"votes": 1.0, "log_mass": 0.0, "score": 0.0, "valid": True}


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
        extra=extra(keys),
    )
