"""Stream host tensors to a device block by block, copying the next while one is in use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

ROOM = 2  # blocks on the device at once: one in use, one being copied


class HostBlocks:
    """Transfers between the host and one device, with device buffers shared by all layers.

    On CUDA blocks are in pinned memory and are copied on a separate stream, in the order requested. On a CPU nothing is
    copied.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pinned = device.type == "cuda" and torch.cuda.is_available()
        self.stream = torch.cuda.Stream(device) if self.pinned else None
        self.buffers: list[_Buffer] = [_Buffer() for _ in range(ROOM)]
        self.sent: list[tuple[Tensor, _Buffer]] = []  # in order; the first may be in use

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """An uninitialised host tensor, pinned on CUDA."""
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=self.pinned)

    def store(self, into: Tensor, states: Tensor) -> None:
        """Copy device `states` into part of a block, asynchronously; later transfers are ordered after it."""
        if self.stream is None:
            into.copy_(states)
            return
        states = states.contiguous()
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            into.copy_(states, non_blocking=True)
        states.record_stream(self.stream)

    def fetch(self, small: Tensor) -> Tensor:
        """Copy a whole host tensor to the device, ordered with its computation."""
        return small.to(self.device, non_blocking=self.pinned)

    def put_back(self, into: Tensor, small: Tensor) -> None:
        """Copy a device tensor to the host; only the device may use `into` until it is synchronised."""
        into.copy_(small, non_blocking=self.pinned)

    def settle(self) -> None:
        """Wait until everything stored can be read on the host."""
        if self.stream is not None:
            self.stream.synchronize()

    def each(self, blocks: Sequence[Tensor], then: Sequence[Tensor] = ()) -> Iterator[Tensor]:
        """Yield each of `blocks` on the device, valid until the next is requested.

        `then` are the blocks of the next call; the first of them are sent ahead and must not change until then.
        """
        if self.device.type == "cpu":
            yield from blocks
            return
        queue = [*blocks, *then]
        if [id(block) for block, _ in self.sent] != [id(block) for block in queue[: len(self.sent)]]:
            self.sent = []  # other blocks were sent ahead
        for index in range(len(blocks)):
            for block in queue[index + len(self.sent) : index + ROOM]:
                self._send(block)
            yield self.sent[0][1].arrived(self.stream)
            self.sent.pop(0)[1].leave(self.stream)
        for block in queue[len(blocks) + len(self.sent) : len(blocks) + ROOM]:
            self._send(block)

    def _send(self, block: Tensor) -> None:
        place = self.buffers.pop(0)
        self.buffers.append(place)
        place.send(block, self.device, self.stream)
        self.sent.append((block, place))


class _Buffer:
    """A device buffer for one block, with the events of its arrival and last use."""

    def __init__(self) -> None:
        self.block = self.flat = torch.empty(0)
        self.arrival: torch.cuda.Event | None = None
        self.last_use: torch.cuda.Event | None = None

    def send(self, block: Tensor, device: torch.device, stream: torch.cuda.Stream | None) -> None:
        if stream is None:
            self.block = block.to(device)
            return
        if self.flat.numel() < block.numel() or self.flat.dtype != block.dtype:
            self.flat = torch.empty(block.numel(), dtype=block.dtype, device=device)
            self.flat.record_stream(stream)
            stream.wait_stream(torch.cuda.current_stream(device))
        self.block = self.flat[: block.numel()].view(block.shape)
        if self.last_use is not None:
            stream.wait_event(self.last_use)
        with torch.cuda.stream(stream):
            self.block.copy_(block, non_blocking=True)
            self.arrival = stream.record_event()

    def arrived(self, stream: torch.cuda.Stream | None) -> Tensor:
        if self.arrival is not None:
            torch.cuda.current_stream(self.block.device).wait_event(self.arrival)
        return self.block

    def leave(self, stream: torch.cuda.Stream | None) -> None:
        if stream is not None:
            self.last_use = torch.cuda.current_stream(self.block.device).record_event()
