"""Keys or values of a packed table, decoded one block at a time on access."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.stores.code import Code, Coded

BLOCK = 4096  # slots decoded at a time


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

    def new_zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """As for a tensor."""
        return self.native.new_zeros(*shape, dtype=dtype)

    def __getitem__(self, index: tuple[slice, slice, slice]) -> Tensor:
        """Some slots of all heads, decoded."""
        first, last, _ = index[2].indices(self.shape[2])
        cut = min(last, self.room)
        native = self.native[:, :, max(first - self.room, 0) : max(last - self.room, 0)]
        if first >= cut:
            return native
        coded = self._decoded(first, cut)
        return torch.cat([coded, native], 2) if native.shape[2] else coded

    def whole(self) -> Tensor:
        """All slots, decoded."""
        return self[:, :, : self.shape[2]]

    def blocks(self) -> Iterator[slice]:
        """Slices of slots that are worth decoding together."""
        for first in range(0, self.shape[2], BLOCK):
            yield slice(first, min(first + BLOCK, self.shape[2]))

    def split(self, size: int, dim: int) -> Iterator[Tensor]:
        """Blocks of `size` slots; `dim` must be 2."""
        assert dim == 2
        return (self[:, :, first : first + size] for first in range(0, self.shape[2], size))

    def _decoded(self, first: int, last: int) -> Tensor:
        group = self.code.group
        start, end = first // group, -(-last // group)
        part = {
            name: tensor[:, :, start:end] if name in self.code.shared else tensor[:, :, start * group : end * group]
            for name, tensor in self.coded.items()
        }
        states = self.code.decode(part, self.shape[3])
        if self.mean is not None:
            states = states + self.mean.float()
        return states.to(self.dtype)[:, :, first - start * group : last - start * group]


States = Tensor | PackedStates


def whole(states: States) -> Tensor:
    """All slots as a tensor."""
    return states.whole() if isinstance(states, PackedStates) else states


def parts(states: States) -> Iterator[tuple[slice, Tensor]]:
    """(slots, their states): one part for a tensor, blocks for packed states."""
    if isinstance(states, PackedStates):
        return ((columns, states[:, :, columns]) for columns in states.blocks())
    return iter([(slice(0, states.shape[2]), states)])


def mixed(mass: Tensor, states: States) -> Tensor:
    """`mass` (B, H, r, S) @ states (B, H, S, d), one block at a time, in the dtype of `mass`."""
    total: Tensor | None = None
    for columns, block in parts(states):
        part = mass[..., columns] @ block.to(mass.dtype)
        total = part if total is None else total + part
    assert total is not None
    return total
