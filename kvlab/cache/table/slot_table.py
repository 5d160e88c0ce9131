"""One layer's slot table in memory: room for new tokens, growth by blocks, what the host knows of its length."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from kvlab.cache.kernels.cpu import compiled, is_recorded
from kvlab.cache.table import apply_plan
from kvlab.cache.table.apply_plan import FRESH
from kvlab.cache.table.compaction import pack
from kvlab.cache.table.new_token import NewToken, as_array
from kvlab.common.limits import room_to_grow
from kvlab.methods.core.plan import Plan
from kvlab.methods.core.rotary import Rotary
from kvlab.methods.core.slot_columns import ASKED, FREE, Columns, key_lengths, there, whole_numbers
from kvlab.methods.core.view import KEY_LENGTH, NEVER, Slots
from kvlab.stores.quantized_states import States


class SlotTable:
    """Slots plus the host's bounds on them, so that appending and attending never read a count from the device.

    Only the first `width` slots of a head are ever looked at; what lies behind is room to grow. `occupied` bounds the
    valid slots of any head. While `is_dense`, all of the first `width` are valid, and attention may leave the validity
    mask out. `weighted` says that some log mass may differ from 0.
    """

    def __init__(self, first: Slots, columns: Columns) -> None:
        self.slots = first
        self.columns = columns
        self.width = self.occupied = first.keys.shape[2]
        self.is_dense = True
        self.weighted = False
        self.head_state: dict[str, Tensor] = {}  # (B, H, ...) what the method keeps of a head beside its slots
        self.never = first.keys.new_full((), NEVER, dtype=torch.float32)  # a number that lies on the device already
        self.left_bytes = 0  # of the table the last growth copied: for a moment both were held

    @property
    def slots(self) -> Slots:
        """As they lie in memory: what follows from other columns is not there."""
        return self._slots

    @slots.setter
    def slots(self, slots: Slots) -> None:
        self._slots = slots
        self._freed: Tensor | None = None  # where the last decision made room, as long as that is known
        self._fills = False  # no slot is free once a token is there
        self._refill: Refill | None = None
        self._slots_bytes: int | None = None

    @property
    def capacity(self) -> int:
        """Slots per head the tensors have room for."""
        return self.slots.keys.shape[2]

    def states(self) -> tuple[States, States]:
        """(keys, values) of the first `width` slots."""
        return self.handed()

    def handed(self) -> tuple[Tensor, Tensor]:
        """(keys, values) that go through the model to attention, which asks the layer for all there are."""
        keys, values = self.slots.keys, self.slots.values
        return (keys, values) if self.width == self.capacity else (keys[:, :, : self.width], values[:, :, : self.width])

    def visible(self) -> Slots:
        """The first `width` slots, views of the table's own tensors, and which are valid, and log mass; no score."""
        return self.columns.weighed(self._first(self.width), self.is_dense)

    def rated(self) -> Slots:
        """The same with every score."""
        return self.rate(self.visible())

    def rate(self, visible: Slots) -> Slots:
        """Slots of this table that have their log mass with every score."""
        return self.columns.rated(visible, self.head_state.get(ASKED))

    def whole(self) -> Slots:
        """All slots, free room included, with every score."""
        return self.rate(self.columns.weighed(self.slots))

    def held(self) -> Slots:
        """The first `width` slots as they lie in memory: nothing that follows from other columns, validity neither."""
        return self._first(self.width)

    def there(self) -> Tensor:
        """(B, H, S) bool: which of all slots are valid."""
        return there(self.slots.position)

    def live(self) -> Tensor:
        """Valid slots of each head, (B, H) int64."""
        return self.there().sum(-1)

    def first(self, count: int) -> Slots:
        """The first `count` of the visible slots, with their log mass."""
        return self.columns.weighed(self._first(count))

    def _first(self, count: int) -> Slots:
        return self.slots if count == self.capacity else self.slots.map(lambda tensor: tensor[:, :, :count])

    def bias(self, visible: Slots) -> Tensor | None:
        """`Slots.bias` of the `visible` slots; None where it would be 0."""
        if not self.is_dense:
            return visible.bias(self.never)
        return visible.log_mass_of_heads() if self.weighted and visible.has_mass else None

    def hold(self, tokens: int) -> None:
        """Make whole numbers wide enough for a text of `tokens` tokens."""
        if not self.holds(tokens):
            short, long = self.slots.position.dtype, whole_numbers(tokens)
            self.slots = self.slots.map(lambda tensor: tensor.to(long) if tensor.dtype == short else tensor)

    def holds(self, tokens: int) -> bool:
        """Whether they are."""
        return self.slots.position.dtype.itemsize >= whole_numbers(tokens).itemsize

    def was_freed(self, slots: Tensor, only: bool) -> None:
        """A decision has freed slots (B * H,), numbered over all heads: the first free ones now, or the `only` ones."""
        self._freed, self._fills = slots, only

    def append_one(self, token: NewToken, bucket: int, extra: Mapping[str, float]) -> None:
        """Write one token per head into a free slot, in place; where every slot may be taken, the next one is used.

        Of `token` the streams in `bucket`; `extra` is the method's own state of a new slot.
        """
        self.left_bytes = 0
        freed, self._freed = self._freed, None
        if freed is not None and not is_recorded():  # replayed, the step would write where this one did
            self._refill = self._refill or Refill(self.slots, extra)
            self._refill.put(freed, token, token.streams.numbers[bucket])
            self.occupied, self.is_dense = self.occupied + 1, self._fills
            return
        keys, values, position = token.of_table(bucket)
        if self.occupied == self.width:
            self._make_room(1, room_to_grow(self.width))
            self.width += 1
        if self.is_dense:
            free = torch.full((*keys.shape[:2], 1), self.occupied, dtype=torch.int64, device=keys.device)
        else:  # the first that is not valid
            free = self.slots.position[:, :, : self.width].argmin(-1, keepdim=True)
        place = position[:, None, None].expand(*keys.shape[:2], 1)
        new: dict[str, Tensor | float] = {
            "keys": keys,
            "values": values,
            "position": place,
            **apply_plan.FRESH,
            **extra,
        }
        if KEY_LENGTH in self.slots.extra:
            new[KEY_LENGTH] = key_lengths(keys)
        apply_plan.write(self.slots, free, new)
        self.occupied += 1

    def append_many(self, new: Slots) -> None:
        """Put several tokens behind the slots in use."""
        rows, width, self.left_bytes, self._freed = new.keys.shape[2], self.width, 0, None
        self._make_room(rows, 0)
        arrived = _tensors(new)
        for name, tensor in _tensors(self.slots).items():
            tensor[:, :, width : width + rows] = arrived[name]
        self.width, self.occupied = width + rows, self.occupied + rows

    def reserve(self, capacity: int) -> None:
        """Room for `capacity` slots, taken at once."""
        self._make_room(capacity - self.width, 0)

    def forget(self, width: int, dense: bool) -> None:
        """Take back all that was appended since the table had `width` slots and nothing was decided."""
        self.slots.position[:, :, width:] = FREE
        self.width = self.occupied = width
        self.is_dense, self.left_bytes = dense, 0

    def give_back_room(self, whole: torch.dtype) -> None:
        """Keep no more than the visible slots, with whole numbers of type `whole`; memory is freed by `detach`."""
        now = self.slots.position.dtype
        kept = self._first(self.width)
        self.slots = (
            kept if now == whole else kept.map(lambda tensor: tensor.to(whole) if tensor.dtype == now else tensor)
        )

    def _make_room(self, rows: int, more: int) -> None:
        """Room for `rows` more slots; a table that is too short is copied into one with `more` beyond them."""
        if self.width + rows > self.capacity:
            self.left_bytes = self.table_bytes()
            self.slots = apply_plan.grow(self._first(self.width), self.width + rows + more)

    def mark_padding(self, row_valid: Tensor, position: Tensor) -> None:
        """The newest slots get validity (B, q) and positions (B, q)."""
        first = self.width - row_valid.shape[1]
        self.slots.position[:, :, first : self.width] = position.masked_fill(~row_valid, FREE)[:, None]
        self.is_dense = False

    def store(self, changed: Mapping[str, Tensor]) -> None:
        """Take over new values of metadata of the visible slots, or of the first of them, as far as they are held."""
        own = self._first(self.width).own()
        for name in changed.keys() & own.keys():
            own[name][:, :, : changed[name].shape[2]].copy_(changed[name])

    def after(self, slots: Slots, plan: Plan, rotary: Rotary | None) -> Slots:
        """What `plan` leaves of the visible `slots`."""
        return apply_plan.apply(slots, plan, rotary)

    def pack_gathered(self) -> None:
        """Where slots are held in a code: code those that are due."""

    def adopt(self, after: Slots, bound: int) -> None:
        """Take over the visible slots as a plan left them; no head has more than `bound` valid ones."""
        own, states = _tensors(self._first(self.width)), after.metadata() | {"keys": after.keys, "values": after.values}
        for name, tensor in own.items():
            if tensor.data_ptr() != states[name].data_ptr():
                tensor.copy_(states[name])
        own["position"].masked_fill_(~after.valid, FREE)
        self.is_dense, self._freed = False, None
        self.occupied = min(self.occupied, bound)

    def note_heads(self, state: Mapping[str, Tensor]) -> None:
        """Take over what a plan notes of each head, in place where there is something of that shape already."""
        for name, value in state.items():
            own = self.head_state.get(name)
            if own is not None and own.shape == value.shape and own.dtype == value.dtype:
                own.copy_(value)
            else:
                self.head_state[name] = value

    def was_asked(self, tokens: Tensor, rows: Tensor | None = None) -> None:
        """Scores are made of all queries up to the newest of `tokens` (N,); of a prompt, of its last `rows` (N or 1,).

        Noted where counts of queries follow from that.
        """
        if self.columns.counts is None:
            return
        if rows is not None:
            asked = torch.stack([tokens - rows, tokens], -1).long()
            self.head_state[ASKED] = asked[:, None].repeat(1, self.slots.keys.shape[1], 1)
        else:
            self.head_state[ASKED].select(-1, 1).copy_(tokens[:, None])

    def packed(
        self, order: Tensor, room: int, lengths: list[int], streams: list[int] | None = None, width: int = 0
    ) -> SlotTable:
        """A new table of the valid slots of some streams (default all), with `room` more slots than the longest has.

        `lengths` are the valid slots of each of their heads, `order` is `pack.in_order` of the table's slots.
        """
        index = None if streams is None else torch.tensor(streams, device=order.device)
        longest = max(lengths)
        table = SlotTable(pack(self.slots, order, index, width, longest, longest + room), self.columns)
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
        if self._slots_bytes is None:
            self._slots_bytes = _bytes(*_tensors(self.slots).values())
        return self._slots_bytes + self.head_bytes()

    def head_bytes(self) -> int:
        """Bytes of the heads' own state, which does not grow with the slots."""
        return _bytes(*self.head_state.values())

    def saved_bytes(self) -> Tensor | None:
        """(N, W) by how much less the valid slots take than `slot_bytes` each; None where they take just that."""
        return None

    def live_bytes(self) -> int:
        """Bytes of the valid slots, metadata and the heads' own state included; reads counts from the device."""
        saved = self.saved_bytes()
        whole = int(self.live().sum()) * self.slot_bytes() + self.head_bytes()
        return whole if saved is None else whole - int(saved.sum())

    def slot_bytes(self) -> int:
        """Bytes of one slot of one head, metadata included."""
        states = sum(tensor.shape[-1] * tensor.element_size() for tensor in (self.slots.keys, self.slots.values))
        return states + _bytes(*(tensor[:1, :1, :1] for tensor in self.slots.own().values()))


def _tensors(slots: Slots) -> dict[str, Tensor]:
    return slots.own() | {"keys": slots.keys, "values": slots.values}


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Refill:
    """The columns of a contiguous table on a CPU as arrays of the same memory, (N * W * S[, d]).

    The slots of all heads lie behind one another. A few numbers are written through an array in a tenth of the time
    that a tensor takes. `state` is the method's own state of a new slot.
    """

    def __init__(self, slots: Slots, state: Mapping[str, float]) -> None:
        own = slots.own() | {"keys": slots.keys, "values": slots.values}
        flat = {name: column.view(-1, *column.shape[3:]) for name, column in own.items()}
        self.columns = {name: as_array(column) for name, column in flat.items()}
        start = {name: number for name, number in {**FRESH, **state}.items() if name in flat}
        self.start = {name: as_array(flat[name].new_full((), number)) for name, number in start.items()}
        self.lengths = self.columns.get(KEY_LENGTH, np.empty(0, np.float32))
        self.compiled = compiled() if slots.keys.dtype == torch.float32 else None

    def put(self, free: Tensor, token: NewToken, heads: np.ndarray) -> None:
        """Write `token` over the slots `free` (N * W,) of heads that are `heads` (N * W,) among all of the layer."""
        own, slots, (keys, values, position) = self.columns, free.numpy(), token.arrays
        states, apart = (own["keys"], own["values"], own["position"]), len(keys) // len(position)
        if self.compiled is not None:
            self.compiled.fill(*states, self.lengths, slots, keys, values, position, apart, heads)
        else:
            for column, numbers in zip(states, (keys, values, position.repeat(apart)), strict=True):
                column[slots] = numbers[heads]
            if KEY_LENGTH in own:
                own[KEY_LENGTH][slots] = token.lengths[heads]
        for name, number in self.start.items():
            own[name][slots] = number
