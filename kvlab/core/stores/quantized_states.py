"""Keys or values of a packed table, decoded one block at a time on access."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvlab.core.stores.code import Code, Coded

BLOCK = 4096  # slots decoded at a time
Turn = Callable[[Tensor, Tensor], Tensor]  # rotates states (..., d) by positions (...)


@dataclass(frozen=True)
class PackedStates:
    """States (B, H, S, d): the first `room` are encoded, the others native.

    Supports what attention uses of a tensor: shape, dtype, device, and slices `states[:, :, first:last]`, which are
    decoded.
    """

    code: Code
    coded: Coded
    native: Tensor  # (B, H, t, d)
    room: int
    mean: Tensor | None = None  # (B, H, 1, d), added to what is decoded
    turn: Turn | None = None  # then turned to `position` (B, H, room)
    position: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """(B, H, S, d)."""
        batch, heads, more, width = self.native.shape
        return torch.Size((batch, heads, self.room + more, width))

    @property
    def dtype(self) -> torch.dtype:
        """dtype after decoding."""
        return self.native.dtype

    @property
    def device(self) -> torch.device:
        return self.native.device

    def __getitem__(self, index: tuple[slice, slice, slice]) -> Tensor:
        """Some slots of all heads, decoded."""
        first, last, _ = index[2].indices(self.shape[2])
        cut = min(last, self.room)
        native = self.native[:, :, max(first - self.room, 0) : max(last - self.room, 0)]
        if first >= cut:
            return native
        coded = self._decoded(first, cut)
        return torch.cat([coded, native], 2) if native.shape[2] else coded

    def blocks(self) -> Iterator[slice]:
        """Slices of slots that are worth decoding together."""
        for first in range(0, self.shape[2], BLOCK):
            yield slice(first, min(first + BLOCK, self.shape[2]))

    def split(self, size: int, dim: int) -> Iterator[Tensor]:
        """Blocks of `size` slots; `dim` must be 2."""
        assert dim == 2
        return (self[:, :, first : first + size] for first in range(0, self.shape[2], size))

    def at(self, index: Tensor) -> Tensor:
        """The slots `index` (B, H, E), (B, H, E, d); only they are decoded."""
        is_coded = index < self.room
        native = _rows_at(self.native, (index - self.room).clamp_min(0)) if self.native.shape[2] else None
        if not self.room:
            assert native is not None
            return native
        place = index.clamp_max(self.room - 1)
        size = self.code.group
        coded = {
            name: _rows_at(tensor, place // size if name in self.code.shared else place)
            for name, tensor in self.coded.items()
        }
        code = replace(self.code, group=1) if size > 1 else self.code  # type: ignore[type-var]  # every code is a dataclass
        position = None if self.position is None else self.position.gather(2, place)
        states = self._restored(code.decode(coded, self.shape[3]), position)
        return states if native is None else torch.where(is_coded[..., None], states, native)

    def products(self, query: Tensor, columns: slice) -> Tensor:
        """Dot products (B, H, r, c) float32 of `query` (B, H, r, d) float32 with the slots `columns`."""
        cut = min(columns.stop, self.room)
        native = self.native[:, :, max(columns.start - self.room, 0) : max(columns.stop - self.room, 0)]
        parts = []
        if columns.start < cut:
            if self.turn is not None:  # each slot by its own angle
                parts.append(query @ self._decoded(columns.start, cut).float().transpose(-1, -2))
            else:
                groups, inner = self._groups(columns.start, cut)
                coded = self.code.products(groups, query)[..., inner]
                if self.mean is not None:
                    coded = coded + query @ self.mean.float().transpose(-1, -2)
                parts.append(coded)
        if native.shape[2] or not parts:
            parts.append(query @ native.float().transpose(-1, -2))
        return torch.cat(parts, -1) if parts[1:] else parts[0]

    def weighted_sum(self, mass: Tensor, columns: slice) -> Tensor:
        """`mass` (B, H, r, c) float32 times the slots `columns`: (B, H, r, d) float32."""
        cut = min(columns.stop, self.room)
        native = self.native[:, :, max(columns.start - self.room, 0) : max(columns.stop - self.room, 0)]
        coded = max(cut - columns.start, 0)
        total = mass[..., coded:] @ native.float()
        if coded:
            groups, inner = self._groups(columns.start, cut)
            coded_mass = mass[..., :coded]
            size = self.code.group
            if size > 1:
                coded_mass = pad(coded_mass, (inner.start, -inner.stop % size))
            assert self.turn is None, "only keys are turned"
            total += self.code.weighted_sum(groups, coded_mass, self.shape[3])
            if self.mean is not None:
                total += mass[..., :coded].sum(-1, keepdim=True) * self.mean.float()
        return total

    def _groups(self, first: int, last: int) -> tuple[Coded, slice]:
        """The groups of encoded slots that hold `first` to `last`, and the place of these slots in them."""
        size = self.code.group
        start = first // size
        end = -(-last // size)
        part = {
            name: tensor[:, :, start:end] if name in self.code.shared else tensor[:, :, start * size : end * size]
            for name, tensor in self.coded.items()
        }
        return part, slice(first - start * size, last - start * size)

    def _decoded(self, first: int, last: int) -> Tensor:
        groups, inner = self._groups(first, last)
        position = None if self.position is None else self.position[:, :, first:last]
        return self._restored(self.code.decode(groups, self.shape[3])[:, :, inner], position)

    def _restored(self, states: Tensor, position: Tensor | None) -> Tensor:
        """Decoded `states` as they were before encoding."""
        if self.mean is not None:
            states = states + self.mean.float()
        if self.turn is not None and position is not None:
            states = self.turn(states, position)
        return states.to(self.dtype)


States = Tensor | PackedStates


def dense_states(states: States) -> Tensor:
    """All slots as a tensor."""
    return states[:, :, : states.shape[2]] if isinstance(states, PackedStates) else states


def states_at(states: States, index: Tensor) -> Tensor:
    """The slots `index` (B, H, E) of states (B, H, S, d), (B, H, E, d)."""
    return states.at(index) if isinstance(states, PackedStates) else _rows_at(states, index)


def _rows_at(states: Tensor, index: Tensor) -> Tensor:
    """As `states_at`, for (B, H, S, ...). Whole rows are copied, which is several times as fast as a gather."""
    batch, heads, (row, head, slot) = *states.shape[:2], states.stride()[:3]
    last = states[0, 0, 0]
    if not (slot and last.is_contiguous() and row % slot == 0 and head % slot == 0 and slot >= last.numel()):
        expanded = index.view(*index.shape, *(1,) * last.dim()).expand(*index.shape, *last.shape)
        return states.gather(2, expanded)
    starts = torch.arange(batch, device=index.device)[:, None] * (row // slot)
    starts = starts + torch.arange(heads, device=index.device) * (head // slot)
    rows = (batch - 1) * (row // slot) + (heads - 1) * (head // slot) + states.shape[2]
    flat = states.as_strided((rows, *last.shape), (slot, *last.stride()))
    return flat.index_select(0, (index + starts[..., None]).flatten()).view(*index.shape, *last.shape)


def parts(states: States) -> Iterator[tuple[slice, Tensor]]:
    """(slots, their states): one part for a tensor, blocks for packed states."""
    if isinstance(states, PackedStates):
        return ((columns, states[:, :, columns]) for columns in states.blocks())
    return iter([(slice(0, states.shape[2]), states)])


def products(query: Tensor, states: States, columns: slice) -> Tensor:
    """Dot products (B, H, r, c) float32 of `query` (B, H, r, d) float32 with the slots `columns` of (B, H, S, d)."""
    if isinstance(states, PackedStates):
        return states.products(query, columns)
    return query @ states[:, :, columns].float().transpose(-1, -2)


def weighted_sum(mass: Tensor, states: States, columns: slice) -> Tensor:
    """`mass` (B, H, r, c) float32 times the slots `columns` of states (B, H, S, d): (B, H, r, d) float32."""
    return (
        states.weighted_sum(mass, columns) if isinstance(states, PackedStates) else mass @ states[:, :, columns].float()
    )


def mix_states(mass: Tensor, states: States) -> Tensor:
    """`mass` (B, H, r, S) @ states (B, H, S, d), one block at a time, in the dtype of `mass`."""
    if not isinstance(states, PackedStates):
        return mass @ states.to(mass.dtype)
    blocks = (states.weighted_sum(mass[..., columns].float(), columns) for columns in states.blocks())
    return torch.stack(list(blocks)).sum(0).to(mass.dtype)
