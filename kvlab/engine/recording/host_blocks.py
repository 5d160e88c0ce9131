"""Tensors that lie on the host and are used on a device block by block, the next on its way while one is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

ROOM = 2  # blocks on the device at once: one that is used, one on its way


class HostBlocks:
    """The way between the host and one device, shared by all layers, so that they share its room there too.

    On CUDA blocks lie in pinned memory and travel on a stream of their own, in the order in which they were asked for.
    On a CPU nothing travels.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pinned = device.type == "cuda" and torch.cuda.is_available()
        self.beside = torch.cuda.Stream(device) if self.pinned else None
        self.room: list[_Place] = [_Place() for _ in range(ROOM)]
        self.sent: list[tuple[Tensor, _Place]] = []  # in order; the first may be in use

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """A tensor on the host."""
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=self.pinned)

    def store(self, into: Tensor, states: Tensor) -> None:
        """Copy `states` of the device into part of a block; it does not wait, and what is sent later comes after it."""
        if self.beside is None:
            into.copy_(states)
            return
        states = states.contiguous()
        self.beside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.beside):
            into.copy_(states, non_blocking=True)
        states.record_stream(self.beside)

    def fetch(self, small: Tensor) -> Tensor:
        """A whole tensor of the host on the device, in the order of what is computed there."""
        return small.to(self.device, non_blocking=self.pinned)

    def put_back(self, into: Tensor, small: Tensor) -> None:
        """The way back of `fetch`; only the device may read `into` again before it is waited for."""
        into.copy_(small, non_blocking=self.pinned)

    def settle(self) -> None:
        """Wait until all that was stored can be read on the host."""
        if self.beside is not None:
            self.beside.synchronize()

    def each(self, blocks: Sequence[Tensor], then: Sequence[Tensor] = ()) -> Iterator[Tensor]:
        """Each of `blocks` on the device, in order; one is good until the next is asked for.

        `then` are those that the next call will ask for: the first of them are sent ahead. They must not change until.
        """
        if self.device.type == "cpu":
            yield from blocks
            return
        queue = [*blocks, *then]
        if [id(block) for block, _ in self.sent] != [id(block) for block in queue[: len(self.sent)]]:
            self.sent = []  # something else was expected
        for index in range(len(blocks)):
            for block in queue[index + len(self.sent) : index + ROOM]:
                self._send(block)
            yield self.sent[0][1].arrived(self.beside)
            self.sent.pop(0)[1].leave(self.beside)
        for block in queue[len(blocks) + len(self.sent) : len(blocks) + ROOM]:
            self._send(block)

    def _send(self, block: Tensor) -> None:
        place = self.room.pop(0)
        self.room.append(place)
        place.send(block, self.device, self.beside)
        self.sent.append((block, place))


class _Place:
    """Room for one block on the device, and when it came and was last used."""

    def __init__(self) -> None:
        self.block = self.flat = torch.empty(0)
        self.came: torch.cuda.Event | None = None
        self.used: torch.cuda.Event | None = None

    def send(self, block: Tensor, device: torch.device, beside: torch.cuda.Stream | None) -> None:
        if beside is None:
            self.block = block.to(device)
            return
        if self.flat.numel() < block.numel() or self.flat.dtype != block.dtype:
            self.flat = torch.empty(block.numel(), dtype=block.dtype, device=device)
            self.flat.record_stream(beside)
            beside.wait_stream(torch.cuda.current_stream(device))
        self.block = self.flat[: block.numel()].view(block.shape)
        if self.used is not None:
            beside.wait_event(self.used)
        with torch.cuda.stream(beside):
            self.block.copy_(block, non_blocking=True)
            self.came = beside.record_event()

    def arrived(self, beside: torch.cuda.Stream | None) -> Tensor:
        if self.came is not None:
            torch.cuda.current_stream(self.block.device).wait_event(self.came)
        return self.block

    def leave(self, beside: torch.cuda.Stream | None) -> None:
        if beside is not None:
            self.used = torch.cuda.current_stream(self.block.device).record_event()
