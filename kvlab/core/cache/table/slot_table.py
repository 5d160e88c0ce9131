"""Slot table of one layer: storage for new tokens, growth by blocks, and host-side bounds on its length."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvlab.core.cache.table import apply_plan
from kvlab.core.cache.table.apply_plan import NEW_SLOT
from kvlab.core.cache.table.compaction import pack
from kvlab.core.contract import HEAD_MASS, KEY_LENGTH, NEVER, Plan, Rotary, Slots, is_constant
from kvlab.core.contract.slot_columns import ASKED, FREE, Columns, gather, integer_dtype, is_valid, key_lengths
from kvlab.core.stores.quantized_states import States
from kvlab.core.table_growth import room_to_grow


class SlotTable:
    """Slots with host-side bounds, so that appending and attending never read a count from the device.

    Only the first `width` slots of a head are read; the rest is free space. `occupied` bounds the valid slots of any
    head. While `is_dense`, the first `width` slots are all valid and attention needs no mask. `weighted`: some log mass
    may not be 0.
    """

    def __init__(self, first: Slots, columns: Columns) -> None:
        self.slots = first
        self.columns = columns
        self.width = self.occupied = first.keys.shape[2]
        self.is_dense = True
        self.ends_with_newest = True  # the host knows that the newest token is in the last slot
        self.weighted = False
        self.head_state: dict[str, Tensor] = {}  # (B, H, ...) the method's per-head state
        self.never = first.keys.new_full((), NEVER, dtype=torch.float32)  # a device constant, created once
        self.shares_states = False  # keys and values belong to other tables too: nothing may change them
        self.left_bytes = 0  # bytes of the table copied by the last growth: both existed for a moment

    @property
    def slots(self) -> Slots:
        """The stored columns, without derived ones."""
        return self._slots

    @slots.setter
    def slots(self, slots: Slots) -> None:
        self._slots = slots
        self._slots_bytes: int | None = None
        self._leading: Slots | None = None  # views of the first slots, as last taken
        self._tensors: dict[str, Tensor] | None = None  # as last asked for

    @property
    def capacity(self) -> int:
        """Allocated slots per head."""
        return self.slots.keys.shape[2]

    def __getstate__(self) -> dict[str, Any]:
        """Without arrays over the memory of its tensors, which a copy or a pickle would cut off from them."""
        return vars(self) | {"_leading": None, "_tensors": None}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Keys, values and the columns that are not constant, of all slots."""
        if self._tensors is None:
            slots = self.slots
            self._tensors = slots.varying_columns() | {"keys": slots.keys, "values": slots.values}
        return self._tensors

    @property
    def arrangement(self) -> tuple[int, ...]:
        """Changes when slots move within the table, outside decisions."""
        return ()

    def states(self) -> tuple[States, States]:
        """(keys, values) of the first `width` slots."""
        return self.native_states()

    def native_states(self) -> tuple[Tensor, Tensor]:
        """(keys, values) that the model passes on to attention, which gets the full states from the layer."""
        keys = self.slots.keys
        values = self.slots.values
        return (keys, values) if self.width == self.capacity else (keys[:, :, : self.width], values[:, :, : self.width])

    def visible(self, count: int | None = None) -> Slots:
        """The first `count` (default `width`) slots as views, with validity and log mass, without scores."""
        if count is None:
            return self.with_states(self.columns.with_log_mass(self.stored(), self.is_dense), self.width)
        return self.with_states(self.columns.with_log_mass(self.stored(count)), count)

    def add_scores(self, visible: Slots) -> Slots:
        """Add all scores to slots of this table that have log mass."""
        return self.columns.with_scores(visible, self.head_state.get(ASKED))

    def whole(self) -> Slots:
        """All slots, free ones included, with all scores."""
        return self.add_scores(self.visible(self.capacity))

    def with_states(self, slots: Slots, count: int) -> Slots:
        """The first `count` slots with their keys and values, which a native table's have already."""
        return slots

    def stored(self, count: int | None = None) -> Slots:
        """The first `count` (default `width`) stored slots as views, without derived columns or validity."""
        count = self.width if count is None else count
        if count == self.capacity:
            return self.slots
        if self._leading is None or self._leading.position.shape[2] != count:
            self._leading = self.slots.map(lambda tensor: tensor[:, :, :count])
        return self._leading

    def valid(self) -> Tensor:
        """Validity (B, H, S) of all slots."""
        return is_valid(self.slots.position)

    def live(self) -> Tensor:
        """Number of valid slots per head, (B, H) int64."""
        return self.valid().sum(-1)

    def bias(self, visible: Slots) -> Tensor | None:
        """`Slots.bias` of the `visible` slots; None if it is 0."""
        if not self.is_dense:
            return visible.bias(self.never)
        has_mass = HEAD_MASS in visible.extra or not is_constant(visible.log_mass)
        return visible.log_mass_of_heads() if self.weighted and has_mass else None

    def set_integers(self, dtype: torch.dtype) -> None:
        """Convert integer columns to `dtype`."""
        now = self.slots.position.dtype
        if now != dtype:
            self.slots = self.slots.map(lambda tensor: tensor.to(dtype) if tensor.dtype == now else tensor)

    def fits_integers(self, tokens: int) -> bool:
        """Whether integer columns are wide enough for `tokens` tokens."""
        return self.slots.position.dtype.itemsize >= integer_dtype(tokens).itemsize

    def share_states(self, other: "SlotTable") -> None:
        """Use the key and value tensors of `other`, which hold the same states, until a decision changes them."""
        if self.slots.keys is not other.slots.keys:
            self.slots = replace(self.slots, keys=other.slots.keys, values=other.slots.values)
        self.shares_states = other.shares_states = True

    def append_one(self, keys: Tensor, values: Tensor, position: Tensor, extra: Mapping[str, float]) -> None:
        """Write one token per head into a free slot in place; extends the table if all slots may be taken.

        `keys`, `values` (N, W, 1, d) at `position` (N,); `extra` is the method's state of a new slot.
        """
        self.left_bytes = 0
        self.ends_with_newest = False
        if self.occupied == self.width:
            self.make_room(1, room_to_grow(self.width))
            self.width += 1
        place = position[:, None, None].expand(*keys.shape[:2], 1)
        new: dict[str, Tensor | float] = {"keys": keys, "values": values, "position": place, **NEW_SLOT, **extra}
        if KEY_LENGTH in self.slots.extra:
            new[KEY_LENGTH] = key_lengths(keys)
        if self.is_dense:  # the same slot of every head: a copy takes less time than `write`
            self.ends_with_newest = True
            for name in new.keys() & self.tensors.keys():
                column = self.tensors[name].narrow(2, self.occupied, 1)
                value = new[name]
                if isinstance(value, Tensor):
                    column.copy_(value)
                else:
                    column.fill_(value)
        else:
            first_free = self.slots.position[:, :, : self.width].argmin(-1, keepdim=True)
            apply_plan.write(self.slots, first_free, {name: new[name] for name in new.keys() & self.tensors.keys()})
        self.occupied += 1

    def append_many(self, new: Slots) -> None:
        """Append several tokens."""
        rows = new.keys.shape[2]
        width = self.width
        self.left_bytes = 0
        self.make_room(rows)
        arrived = new.metadata() | {"keys": new.keys, "values": new.values}
        for name, tensor in self.tensors.items():
            tensor[:, :, width : width + rows] = arrived[name]
        self.width = width + rows
        self.occupied = self.occupied + rows

    def forget(self, width: int, dense: bool) -> None:
        """Remove everything appended since the table had `width` slots; no decision may have been made since."""
        self.slots.position[:, :, width:] = FREE
        self.width = self.occupied = width
        self.is_dense = dense
        self.left_bytes = 0

    def make_room(self, rows: int, more: int = 0) -> None:
        """Ensure space for `rows` more slots; a growing table is copied into one with `more` in addition."""
        if self.width + rows > self.capacity:
            self.left_bytes = self.table_bytes()
            self.shares_states = False
            self.slots = apply_plan.grow(self.stored(), self.width + rows + more)

    def mark_padding(self, row_valid: Tensor, position: Tensor) -> None:
        """Set validity (B, q) and positions (B, q) of the newest slots."""
        first = self.width - row_valid.shape[1]
        self.slots.position[:, :, first : self.width] = position.masked_fill(~row_valid, FREE)[:, None]
        self.is_dense = False

    def close_turn(self, row_valid: Tensor | None) -> None:
        """Move free slots behind the valid ones, those of padding and of shorter heads, as in a head's own table."""
        if not self.is_dense:
            real = is_valid(self.stored().position).view(torch.uint8)
            index = real.argsort(dim=-1, descending=True, stable=True)
            self.slots = self.stored().map(lambda tensor: gather(tensor, index))
            self.shares_states = False

    def store(self, changed: Mapping[str, Tensor]) -> None:
        """Store changed metadata of the visible slots (or of the first ones), for columns that are stored."""
        columns = self.tensors
        for name in changed.keys() & columns.keys():
            columns[name][:, :, : changed[name].shape[2]].copy_(changed[name])

    def after(self, slots: Slots, plan: Plan, rotary: Rotary | None) -> Slots:
        """Apply `plan` to the visible `slots`."""
        if self.shares_states:
            cloned = {name: getattr(slots, name).clone() for name in apply_plan.overwritten_slots(plan)}
            slots = replace(slots, **cloned)
        return apply_plan.apply(slots, plan, rotary)

    def pack_gathered(self) -> None:
        """Encode gathered slots; nothing to do in a native table."""

    def adopt(self, after: Slots, bound: int) -> None:
        """Install the visible slots as a plan left them; no head has more than `bound` valid ones."""
        if self.shares_states:
            self.slots = replace(self.stored(), keys=after.keys, values=after.values)
            self.shares_states = False
        states = after.metadata() | {"keys": after.keys, "values": after.values}
        for name, tensor in self.tensors.items():
            if tensor.data_ptr() != states[name].data_ptr():
                tensor[:, :, : self.width].copy_(states[name])
        self.slots.position[:, :, : self.width].masked_fill_(~after.valid, FREE)
        self.is_dense = False
        self.occupied = min(self.occupied, bound)

    def store_head_state(self, state: Mapping[str, Tensor]) -> None:
        """Store per-head state from a plan, in place if the shape is unchanged."""
        for name, value in state.items():
            stored = self.head_state.get(name)
            if stored is not None and stored.shape == value.shape and stored.dtype == value.dtype:
                stored.copy_(value)
            else:
                self.head_state[name] = value

    def compacted(
        self, order: Tensor, room: int, lengths: list[int], head_sets: list[int] | None = None, width: int = 0
    ) -> "SlotTable":
        """New table of the valid slots of some head sets (default: all), with `room` free slots beyond the longest.

        `lengths`: valid slots of each of their heads; `order`: all slots in the order of the text.
        """
        index = None if head_sets is None else torch.tensor(head_sets, device=order.device)
        longest = max(lengths)
        table = SlotTable(pack(self.slots, order, index, width, longest, longest + room), self.columns)
        table.width = table.occupied = longest
        table.is_dense = min(lengths) == longest
        table.weighted = self.weighted
        if head_sets is None:
            table.head_state = self.head_state
        return table

    def detach(self) -> int:
        """Copy tensors that are views, as a value is often a slice of a fused projection that it would keep alive.

        Returns the bytes copied.
        """
        copied = _bytes(*(tensor for tensor in self.tensors.values() if not tensor.is_contiguous()))
        self.slots = self.slots.map(torch.Tensor.contiguous)
        return copied

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Select, repeat or permute batch rows."""
        self.slots = self.slots.map(change)
        self.head_state = {name: change(tensor) for name, tensor in self.head_state.items()}

    def table_bytes(self) -> int:
        """Bytes of all tensors, metadata and per-head state included."""
        if self._slots_bytes is None:
            self._slots_bytes = _bytes(*self.tensors.values())
        return self._slots_bytes + self.head_bytes()

    def head_bytes(self) -> int:
        """Bytes of the per-head state, which does not grow with the slots."""
        return _bytes(*self.head_state.values())

    def saved_bytes(self) -> Tensor | None:
        """Bytes (N, W) by which valid slots are smaller than `slot_bytes` each; None if they are not."""
        return None

    def live_bytes(self) -> int:
        """Bytes of valid slots, metadata and per-head state included; reads counts from the device."""
        saved = self.saved_bytes()
        whole = int(self.live().sum()) * self.slot_bytes() + self.head_bytes()
        return whole if saved is None else whole - int(saved.sum())

    def slot_bytes(self) -> int:
        """Bytes of one slot of one head, metadata included."""
        states = sum(tensor.shape[-1] * tensor.element_size() for tensor in (self.slots.keys, self.slots.values))
        return states + _bytes(*(tensor[:1, :1, :1] for tensor in self.slots.varying_columns().values()))


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
