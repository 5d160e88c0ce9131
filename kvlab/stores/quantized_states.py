"""Keys or values of a table, some of them coded: decoded a block at a time when somebody looks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.stores.code import Code, Coded

BLOCK = 4096  # slots decoded at a time


@dataclass(frozen=True)
class HeldStates:
    """States (B, H, S, d): the first `room` are coded, the others native.

    What is asked of a tensor of states in attention can be asked of it as well: its shape, type and device, and slots
    `held[:, :, first:last]`, which are decoded then.
    """

    code: Code
    coded: Coded
    native: Tensor  # (B, H, t, d)
    room: int

    @property
    def shape(self) -> torch.Size:
        """(B, H, S, d)."""
        batch, heads, more, width = self.native.shape
        return torch.Size((batch, heads, self.room + more, width))

    @property
    def dtype(self) -> torch.dtype:
        """What states are decoded to."""
        return self.native.dtype

    @property
    def device(self) -> torch.device:
        """Where they lie."""
        return self.native.device

    def new_zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """As a tensor's."""
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
        """All of them, decoded."""
        return self[:, :, : self.shape[2]]

    def blocks(self) -> Iterator[slice]:
        """Slots in lots that are worth decoding together."""
        for first in range(0, self.shape[2], BLOCK):
            yield slice(first, min(first + BLOCK, self.shape[2]))

    def split(self, size: int, dim: int) -> Iterator[Tensor]:
        """Blocks of `size` slots, one after the other; `dim` is 2."""
        assert dim == 2
        return (self[:, :, first : first + size] for first in range(0, self.shape[2], size))

    def _decoded(self, first: int, last: int) -> Tensor:
        group = self.code.group
        start, end = first // group, -(-last // group)
        part = {
            name: tensor[:, :, start:end] if name in self.code.shared else tensor[:, :, start * group : end * group]
            for name, tensor in self.coded.items()
        }
        states = self.code.decode(part, self.shape[3]).to(self.dtype)
        return states[:, :, first - start * group : last - start * group]


States = Tensor | HeldStates


def whole(states: States) -> Tensor:
    """All of them as a tensor."""
    return states.whole() if isinstance(states, HeldStates) else states


def parts(states: States) -> Iterator[tuple[slice, Tensor]]:
    """(slots, their states): one part for a tensor, a block at a time for what is coded."""
    if isinstance(states, HeldStates):
        return ((columns, states[:, :, columns]) for columns in states.blocks())
    return iter([(slice(0, states.shape[2]), states)])


def mixed(mass: Tensor, states: States) -> Tensor:
    """`mass` (B, H, r, S) @ states (B, H, S, d), a block at a time, in the type of `mass`."""
    total: Tensor | None = None
    for columns, block in parts(states):
        part = mass[..., columns] @ block.to(mass.dtype)
        total = part if total is None else total + part
    assert total is not None
    return total
