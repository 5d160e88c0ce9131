"""Slot table with quantized slots: encoded in groups, decoded one block at a time."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvlab.core.cache.table import apply_plan
from kvlab.core.cache.table.apply_plan import like, longer
from kvlab.core.cache.table.compaction import Squeeze
from kvlab.core.cache.table.slot_table import SlotTable
from kvlab.core.contract import FREE, KEY_LENGTH, LIGHT_MASS, Rotary, Slots, expand_index, gather, is_valid, key_lengths
from kvlab.core.contract.plan import Plan
from kvlab.core.stores import Store
from kvlab.core.stores.code import Code, Learning
from kvlab.core.stores.quantized_states import PackedStates, dense_states
from kvlab.core.stores.store import QUERY_SQUARES
from kvlab.core.table_growth import GROWTH


class PackedSlots(Slots):
    """View of a packed table whose keys and values are decoded on first access; eviction-only plans never do."""

    def decoded(self) -> Slots:
        """Decode everything, for the time of one layer's decision."""
        return Slots(**{name: getattr(self, name) for name in vars(self)})

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in ("keys", "values") and isinstance(value, PackedStates):
            value = dense_states(value)
            setattr(self, name, value)
        return value


class PackedTable(SlotTable):
    """Slots in two parts: `room` encoded ones, `used` of them in use, then native (unquantized) ones.

    The native part starts with each head's first slots and the newest ones; new tokens and slots changed by a merge
    follow. When a full group has gathered, the oldest are encoded in order of arrival. Evicted slots leave holes in the
    encoded part. `slots` has the metadata of both parts and states of width 0.
    """

    def __init__(self, native: SlotTable, store: Store, rotary: Rotary | None = None) -> None:
        """Encode `native`, whose valid slots come first in every head, ordered by position.

        `rotary` is needed by stores that turn keys back; None: the model has no rotation.
        """
        slots = native.slots
        live = native.live()[..., None]
        longest = native.width
        codes = {"keys": store.keys, "values": store.values}
        self.scheme, self.codes = store, {side: code for side, code in codes.items() if code is not None}
        sinks = min(store.sinks, longest)
        newest = store.residual
        middle, coded = store.coded(live[..., 0], longest)
        self.room = self.used = middle.shape[2]
        ahead = torch.arange(sinks, device=live.device).expand(*live.shape[:2], -1)
        behind = live - newest + torch.arange(newest, device=live.device)
        index = torch.cat([middle, ahead, behind], 2)
        real = torch.cat([coded, ahead < live, behind >= sinks], 2)
        index = index.clamp(0, longest - 1)
        moved = slots.map(lambda tensor: gather(tensor, index))
        if native.columns.lighter:
            moved = moved.with_columns(log_mass=moved.log_mass.to(LIGHT_MASS))
        moved.position.masked_fill_(~real, FREE)
        states = {"keys": moved.keys, "values": moved.values}
        real = is_valid(moved.position[:, :, : self.room])
        self.native = {side: part[:, :, self.room :] for side, part in states.items()}
        self.rotary = rotary if store.unrotated else None
        place = moved.position[:, :, : self.room]
        coded_states = {side: part[:, :, : self.room] for side, part in states.items()}
        self.mean_key = store.mean_key(coded_states["keys"], real)
        squares = native.head_state.get(QUERY_SQUARES)
        self.learned = {
            side: code.learn(self._prepared(side, coded_states[side], place), real, squares)
            for side, code in self.codes.items()
            if isinstance(code, Learning)
        }
        self.coded = {
            side: self._code(side).encode(self._prepared(side, coded_states[side], place), real) for side in self.codes
        }
        self.first_native = sinks
        without_states = replace(moved, keys=moved.keys[..., :0].clone(), values=moved.values[..., :0].clone())
        super().__init__(without_states, native.columns)
        self.occupied = native.occupied
        self.weighted = native.weighted
        self.is_dense = False
        self.head_state, self.changed, self.restless = native.head_state, _nothing(), 0
        self.make_room(store.lot)

    # reading

    @property
    def arrangement(self) -> tuple[int, ...]:
        """Packing moves slots from the native part into the encoded one."""
        return self.room, self.used, self.width - self.occupied

    def states(self) -> tuple[PackedStates, PackedStates]:
        """(keys, values) of the first `width` slots."""
        return self._packed_states("keys", self.width), self._packed_states("values", self.width)

    def native_states(self) -> tuple[Tensor, Tensor]:
        """The native part."""
        count = self.width - self.room
        return self.native["keys"][:, :, :count], self.native["values"][:, :, :count]

    def with_states(self, slots: Slots, count: int) -> PackedSlots:
        """The first `count` slots with keys and values that are decoded on first access."""
        states: dict[str, Any] = {side: self._packed_states(side, count) for side in ("keys", "values")}
        return PackedSlots(**{**vars(slots), **states})

    def _packed_states(self, side: str, count: int) -> PackedStates:
        native = self.native[side][:, :, : count - self.room]
        mean = self.mean_key if side == "keys" else None
        turn = None
        place = None
        if self.rotary is not None and side == "keys":
            turn = self.rotary.turn
            place = self.slots.position[:, :, : self.room]
        return PackedStates(self._code(side), self.coded[side], native, self.room, mean, turn, place)

    def _code(self, side: str) -> Code:
        """The store's code with what was learned for this table."""
        return replace(self.codes[side], **self.learned[side]) if side in self.learned else self.codes[side]  # type: ignore[type-var]  # every code is a dataclass

    def _prepared(self, side: str, states: Tensor, position: Tensor) -> Tensor:
        """What is encoded of `states`: keys turned back to position 0, minus their mean, if the store asks for it."""
        if side == "keys" and self.rotary is not None:
            states = self.rotary.turn(states, -position)
        if side == "values" or self.mean_key is None:
            return states
        return states.float() - self.mean_key.float()

    # changes

    def append_one(self, keys: Tensor, values: Tensor, position: Tensor, extra: Mapping[str, Tensor | float]) -> None:
        """Write one token per head after the native slots, encoding full groups first."""
        self.left_bytes = 0
        self.ends_with_newest = True
        if self.width - self.room >= min(self._stays, self.occupied) + self.scheme.lot:
            self.pack_gathered()
        self.make_room(1, self.scheme.lot)
        place = torch.full((*keys.shape[:2], 1), self.width, dtype=torch.int64, device=keys.device)
        where = position[:, None, None].expand(*keys.shape[:2], 1)
        if KEY_LENGTH in self.slots.extra:
            extra = {**extra, KEY_LENGTH: key_lengths(keys)}
        apply_plan.write(self.slots, place, {"position": where, **apply_plan.NEW_SLOT, **extra})
        self._put(place, keys, values)
        self.width = self.width + 1
        self.occupied = self.occupied + 1

    def append_many(self, new: Slots) -> None:
        """Append several tokens."""
        rows = new.keys.shape[2]
        self.left_bytes = 0
        self.make_room(rows)
        here = slice(self.width, self.width + rows)
        arrived = new.varying_columns()
        for name, column in self.slots.varying_columns().items():
            column[:, :, here] = arrived[name]
        for side, states in (("keys", new.keys), ("values", new.values)):
            self.native[side][:, :, here.start - self.room : here.stop - self.room] = states
        self.width = self.width + rows
        self.occupied = self.occupied + rows

    def mark_padding(self, row_valid: Tensor, position: Tensor) -> None:
        """As for a native table; all rows have equally many real tokens."""
        super().mark_padding(row_valid, position)
        self.occupied -= row_valid.shape[1] - int(row_valid[0].sum())

    def close_turn(self, row_valid: Tensor | None) -> None:
        """Remove padding, where `row_valid` (B, q) is false, from the newest slots: the table packs as if without."""
        if row_valid is None:
            return
        rows = row_valid.shape[1]
        real = int(row_valid[0].sum())
        first = self.width - rows
        order = row_valid.view(torch.uint8).argsort(dim=-1, descending=True, stable=True)
        index = order[:, None].expand(-1, self.slots.position.shape[1], -1)
        for column in self.slots.varying_columns().values():
            column[:, :, first : self.width] = gather(column[:, :, first : self.width], index)
        for native in self.native.values():
            here = slice(first - self.room, self.width - self.room)
            native[:, :, here] = gather(native[:, :, here], index)
        self.width = first + real

    def after(self, slots: Slots, plan: Plan, rotary: Rotary | None) -> Slots:
        """Apply `plan` to the visible `slots`; keys and values are decoded only if it changes some."""
        assert isinstance(slots, PackedSlots)
        changed = [(plan.edges.target, plan.edges.active)] if plan.edges is not None else []
        for other in (plan.value_shift, plan.new_keys):
            if other is not None:
                changed.append((other.slot, torch.ones_like(other.slot, dtype=torch.bool)))
        if not changed:
            left = slots.with_columns(valid=plan.keep)
            left.extra = slots.extra | (plan.extra or {})
            if plan.log_mass is not None:
                left.log_mass = torch.where(plan.keep, plan.log_mass, slots.log_mass)
            return left
        if len(changed) == 1 and changed[0][0].shape[-1] == 1:
            self.changed = changed[0]
        else:  # each changed slot once, as (slots (B, H, E), mask of active ones)
            index, active = (torch.cat(both, 2) for both in zip(*changed, strict=True))
            times = torch.zeros(slots.valid.shape, dtype=torch.int32, device=index.device)
            times.scatter_add_(2, index, active.to(torch.int32))
            order = (times > 0).view(torch.uint8).argsort(dim=-1, descending=True, stable=True)[..., : index.shape[-1]]
            self.changed = order, times.gather(2, order) > 0
        return apply_plan.apply(slots.decoded(), plan, rotary)

    def adopt(self, after: Slots, bound: int) -> None:
        """Install the visible slots as a plan left them; slots whose state changed become native."""
        index, real = self.changed
        states = after.metadata()
        for name, column in self.stored().varying_columns().items():
            if column.data_ptr() != states[name].data_ptr():
                column.copy_(states[name])
        self.slots.position[:, :, : self.width].masked_fill_(~after.valid, FREE)
        if index.shape[-1]:
            # Slots `index` (B, H, E), where `real`, move to the native part with their states in `after`.
            count = index.shape[-1]
            first = self.width
            self.restless = count
            self.make_room(count, self.scheme.lot)
            native = real & (index >= self.room)
            valid = is_valid(self.slots.position.gather(2, index)) & real
            place = torch.where(native, index, first + torch.arange(count, device=index.device))
            self._put(place, gather(after.keys, index), gather(after.values, index))
            moved = torch.zeros_like(self.slots.position, dtype=torch.uint8)
            hole = moved.scatter_add_(2, index, (valid & ~native).to(torch.uint8)) > 0
            # Clear holes in every column, because methods read whole columns.
            for name, column in self.slots.varying_columns().items():
                nothing = FREE if name == "position" else 0
                column[:, :, first : first + count] = nothing
                moved_values = gather(column, index).masked_fill(~like(valid, column), nothing)
                column.scatter_(2, expand_index(place, column), moved_values)
                column.masked_fill_(like(hole, column), nothing)
            self.width += count
        self.changed = _nothing()
        self.occupied = min(self.occupied, bound)

    @property
    def _stays(self) -> int:
        """Native slots that are not encoded yet: the first, the newest, and as many as two decisions change."""
        return self.first_native + max(self.scheme.residual, self.scheme.gathered, 2 * self.restless)

    def pack_gathered(self) -> None:
        """Encode the oldest gathered native slots, in whole groups."""
        count = self.width - self.room
        if count > self.occupied:  # close holes among the native slots, as there must be some
            columns = slice(self.room, self.width)
            real = is_valid(self.slots.position[:, :, columns]).view(torch.uint8)
            index = real.argsort(dim=-1, descending=True, stable=True)
            for column in self.slots.varying_columns().values():
                column[:, :, columns] = gather(column[:, :, columns], index)
            for native in self.native.values():
                native[:, :, :count] = gather(native[:, :, :count], index)
            self.width = self.room + self.occupied
        group = self.scheme.lot
        start = self.room + self.first_native
        count = (self.width - self.room - self._stays) // group * group
        if count <= 0:
            return
        if self.used + count > self.room:
            self._make_code_room(count)
            start = self.room + self.first_native
        first = start - self.room
        last = self.width - self.room
        place = self.slots.position[:, :, start : start + count]
        real = is_valid(place)
        for side, code in self.codes.items():
            native = self.native[side]
            coded = self._code(side).encode(self._prepared(side, native[:, :, first : first + count], place), real)
            _write(self.coded[side], code, coded, self.used)
            native[:, :, first : last - count] = native[:, :, first + count : last].clone()
        for column in self.slots.varying_columns().values():
            column[:, :, self.used : self.used + count] = column[:, :, start : start + count]
            column[:, :, start : self.width - count] = column[:, :, start + count : self.width].clone()
        self.slots.position[:, :, self.width - count :] = FREE
        self.used = self.used + count
        self.width = self.width - count
        # Free native space that a long turn needed.
        most = self._stays + 2 * self.scheme.lot
        if self.capacity - self.room > most >= self.width - self.room:
            self.native = {side: tensor[:, :, :most].clone() for side, tensor in self.native.items()}
            self.slots = self.slots.map(lambda tensor: tensor[:, :, : self.room + most].clone())

    def make_room(self, rows: int, more: int = 0) -> None:
        """Ensure native space for `rows` more slots; allocate `more` in addition when growing."""
        shortage = self.width + rows - self.capacity
        if shortage > 0:
            self.left_bytes = self.table_bytes()
            self.slots = apply_plan.grow(self.slots, self.capacity + shortage + more)
            self.native = {side: longer(tensor, shortage + more) for side, tensor in self.native.items()}

    def _make_code_room(self, count: int) -> None:
        """Make room for `count` more codes: by closing holes, or if there are too few, in a larger table.

        Groups with many holes are rebuilt; if slots of a group share scales these are decoded and re-encoded, as few as
        possible.
        """
        made = Squeeze.plan(self.valid()[:, :, : self.used], self.scheme.lot, self.occupied, count)
        if made is not None:
            index = made.index
            for side, code in self.codes.items():
                stored = self.coded[side]
                _write(stored, code, made.coded(self._code(side), stored, self.native[side].shape[3]), 0)
            for column in self.slots.varying_columns().values():
                column[:, :, : index.shape[2]] = gather(column, index)
                column[:, :, index.shape[2] : self.room] = 0
            self.slots.position[:, :, index.shape[2] : self.room] = FREE
            self.used = index.shape[2]
            return
        self.left_bytes = self.table_bytes()
        room = self.room
        more = max(count, self.used // GROWTH // self.scheme.lot * self.scheme.lot)
        self.slots = self.slots.map(
            lambda tensor: torch.cat([longer(tensor[:, :, :room], more), tensor[:, :, room:]], 2)
        )
        self.slots.position[:, :, room : room + more] = FREE
        for side, code in self.codes.items():
            self.coded[side] = {
                name: longer(tensor, more // code.group if name in code.shared else more)
                for name, tensor in self.coded[side].items()
            }
        self.room = room + more
        self.width = self.width + more

    def _put(self, place: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write native states (B, H, E, d) to slots `place` (B, H, E)."""
        for side, states in (("keys", keys), ("values", values)):
            native = self.native[side]
            native.scatter_(2, expand_index(place - self.room, native), states.to(native.dtype))

    def compacted(
        self, order: Tensor, room: int, lengths: list[int], head_sets: list[int] | None = None, width: int = 0
    ) -> SlotTable:
        """Decode into a native table of the valid slots, for a layer that is regrouped again."""
        slots = self.slots.with_columns(log_mass=self.slots.log_mass.float())
        native = SlotTable(self.with_states(slots, self.capacity).decoded(), self.columns)
        native.weighted = self.weighted
        native.head_state = self.head_state
        return native.compacted(order, room, lengths, head_sets, width)

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Select, repeat or permute batch rows."""
        super().map_rows(change)
        self.native = {side: change(tensor) for side, tensor in self.native.items()}
        self.coded = {side: {name: change(t) for name, t in stored.items()} for side, stored in self.coded.items()}
        self.mean_key = None if self.mean_key is None else change(self.mean_key)
        self.learned = {
            side: {name: change(t) for name, t in learned.items()} for side, learned in self.learned.items()
        }

    # bytes

    def table_bytes(self) -> int:
        """Bytes of all tensors: codes, scales, metadata and per-head state."""
        return super().table_bytes() + sum(self.part_bytes().values())

    def part_bytes(self) -> dict[str, int]:
        """Bytes of `codes`, their `scales` with what belongs to a head, and `native` keys and values."""
        coded = [
            (name in code.scales, tensor.nbytes)
            for side, code in self.codes.items()
            for name, tensor in self.coded[side].items()
        ]
        return {
            "codes": sum(size for is_scale, size in coded if not is_scale),
            "scales": sum(size for is_scale, size in coded if is_scale) + sum(t.nbytes for t in self._of_heads()),
            "native": sum(tensor.nbytes for tensor in self.native.values()),
        }

    def slot_bytes(self) -> int:
        """Bytes of one native slot of one head, metadata included."""
        return super().slot_bytes() + self._native_bytes()

    def _native_bytes(self) -> int:
        return sum(tensor.shape[-1] * tensor.element_size() for tensor in self.native.values())

    def _of_heads(self) -> list[Tensor]:
        """What belongs to a head's encoded slots together (B, H, ...): the mean key, and what codes learned."""
        learned = [tensor for tensors in self.learned.values() for tensor in tensors.values()]
        return learned if self.mean_key is None else [self.mean_key, *learned]

    def saved_bytes(self) -> Tensor:
        """Bytes (N, W) by which the valid slots are smaller than native ones."""
        valid = self.valid()[:, :, : self.room]
        saved = valid.sum(-1) * self._native_bytes()
        for tensor in self._of_heads():
            saved = saved - valid.any(-1) * tensor[0, 0].nbytes
        for side, code in self.codes.items():
            for name, tensor in self.coded[side].items():
                alike = code.group if name in code.shared else 1
                some = valid.unflatten(2, (-1, alike)).any(-1).sum(-1)
                saved = saved - some * tensor[0, 0, 0].nbytes if tensor.shape[2] else saved
        return saved


def _nothing() -> tuple[Tensor, Tensor]:
    return torch.zeros(1, 1, 0, dtype=torch.int64), torch.zeros(1, 1, 0, dtype=torch.bool)


def _write(stored: Mapping[str, Tensor], code: Code, new: Mapping[str, Tensor], behind: int) -> None:
    """Write codes in place, after the first `behind` slots."""
    for name, tensor in stored.items():
        first = behind // code.group if name in code.shared else behind
        tensor[:, :, first : first + new[name].shape[2]] = new[name]
