"""The shadow: one layer's uncompressed keys and values on the host, and the slot that owns each token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from kvlab.core.attention.pass_view import PassView
from kvlab.core.attention.slot_attention import probabilities
from kvlab.core.cache.buckets.joined_layer import states_at
from kvlab.core.contract import Plan, Slots

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
            place = self.sent[0][1]
            if place.arrival is not None:
                torch.cuda.current_stream(self.device).wait_event(place.arrival)
            yield place.block
            if self.stream is not None:
                place.last_use = torch.cuda.current_stream(self.device).record_event()
            self.sent.pop(0)
        for block in queue[len(blocks) + len(self.sent) : len(blocks) + ROOM]:
            self._send(block)

    def _send(self, block: Tensor) -> None:
        place = self.buffers.pop(0)
        self.buffers.append(place)
        if self.stream is None:
            place.block = block.to(self.device)
            self.sent.append((block, place))
            return
        if place.flat.numel() < block.numel() or place.flat.dtype != block.dtype:
            place.flat = torch.empty(block.numel(), dtype=block.dtype, device=self.device)
            place.flat.record_stream(self.stream)
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
        place.block = place.flat[: block.numel()].view(block.shape)
        if place.last_use is not None:
            self.stream.wait_event(place.last_use)
        with torch.cuda.stream(self.stream):
            place.block.copy_(block, non_blocking=True)
            place.arrival = self.stream.record_event()
        self.sent.append((block, place))


@dataclass
class _Buffer:
    """A device buffer for one block, with the events of its arrival and last use."""

    block: Tensor = field(default_factory=lambda: torch.empty(0))
    flat: Tensor = field(default_factory=lambda: torch.empty(0))
    arrival: torch.cuda.Event | None = None
    last_use: torch.cuda.Event | None = None


TOKENS_AT_ONCE = 4096
TINY = torch.finfo(torch.float32).tiny  # lower bound of a norm, so that only zero vectors are not unit vectors


@dataclass(frozen=True)
class Answer:
    """Result of a pass's last query: mass group mean, (H, S) by slot or (H, T) by token of the full cache, and output
    (Hq, d) float32.

    `state_mass` (H,) is the mass of a low-rank state (LESS), so that both sum to 1; None without one.
    """

    mass: Tensor
    output: Tensor
    state_mass: Tensor | None = None


@dataclass(frozen=True)
class Stored:
    """States as unit vectors (H, T, d) and norms (H, T), float16, and the largest |stored - state| / |state|."""

    unit: np.ndarray
    norm: np.ndarray
    error: float


class Shadow:
    """Every token's key and value of one layer (batch of one), as the compressed run computed them.

    They are on the host in blocks of `TOKENS_AT_ONCE` tokens and are streamed to the device when needed, so recording
    takes the same device memory for any number of layers. With prefill saving some prompt tokens never reach a layer:
    they have no key, get no mass and count as dropped from the start. Dropped tokens are owned by position `capacity`,
    where no token can be, which avoids a special case in lookups.
    """

    def __init__(self, capacity: int, host: HostBlocks | None = None) -> None:
        self.capacity = capacity
        self._host = host  # its own one for the device of the first tokens by default
        self.tokens = 0
        self.rows = 0  # tokens whose states are stored
        self.keys: list[Tensor] = []  # blocks (tokens, H, d) on the host, in text order
        self.values: list[Tensor] = []
        self.owner: Tensor | None = None  # (H, capacity) position of the slot that owns each token, or `capacity`
        self.absent: Tensor | None = None  # (capacity,) bool: tokens that never reached this layer; None if all did
        self.present: Tensor | None = None  # (rows of the first pass,) positions of the others, if some are absent
        self.gaps = 0  # number of absent tokens

    def append(self, slots: Slots, count: int) -> None:
        """Append the `count` newest tokens of a slot table."""
        position = slots.position.masked_fill(~slots.valid, -1)
        # (1, H, count), in text order
        newest = position.argmax(-1, keepdim=True) if count == 1 else position.topk(count, dim=-1).indices.flip(-1)
        if self.owner is None:
            # Allocate the owners, and find the positions that are missing in this first pass.
            first_positions = slots.position.gather(2, newest)[0, 0].long()
            heads = slots.valid.shape[1]
            device = slots.valid.device
            self.host = self._host or HostBlocks(device)
            self.owner = self.host.empty(heads, self.capacity, dtype=torch.int64)
            absent = torch.arange(self.capacity, device=device) < first_positions[-1]
            absent[first_positions] = False
            self.gaps = int(absent.sum())
            owner = torch.arange(self.capacity, device=device)
            if self.gaps:
                self.absent = absent
                self.present = first_positions
                owner = owner.masked_fill(absent, self.capacity)
            self.owner.copy_(owner.expand(heads, -1))
        for first in range(0, count, TOKENS_AT_ONCE):
            self._store(slots, newest[0, :, first : first + TOKENS_AT_ONCE])
            if count > 1:
                self.host.settle()  # pending copies hold device memory
        self.tokens = self.rows + self.gaps

    def _store(self, slots: Slots, index: Tensor) -> None:
        """Append the states of the slots `index` (H, n) to the last blocks."""
        for blocks, name in ((self.keys, "keys"), (self.values, "values")):
            arrived = states_at(slots, name, index[None])[0].transpose(0, 1)  # (n, H, d)
            taken = 0
            while taken < len(arrived):
                first = (self.rows + taken) % TOKENS_AT_ONCE
                if first == 0:
                    size = min(TOKENS_AT_ONCE, self.capacity - self.rows - taken)
                    blocks.append(self.host.empty(size, *arrived.shape[1:], dtype=arrived.dtype))
                part = arrived[taken : taken + TOKENS_AT_ONCE - first]
                self.host.store(blocks[-1][first : first + len(part)], part)
                taken += len(part)
        self.rows += index.shape[1]

    def truth(self, layer_pass: PassView, following: "Shadow | None" = None) -> Answer:
        """Evaluate the pass's last query with the full cache; the states of `following`, used next, are sent ahead."""
        complete = () if following is None else following.keys[: following.rows // TOKENS_AT_ONCE]
        arriving = self.host.each([*self.keys, *self.values], complete)
        position = self._positions(layer_pass.query.device)
        parts = []
        for keys, place in zip(islice(arriving, len(self.keys)), position.split(TOKENS_AT_ONCE), strict=True):
            block = keys[: len(place)].transpose(0, 1)[None]  # (1, H, tokens, d)
            parts.append(layer_pass.logits_at(block, place.expand(1, block.shape[1], -1)))
        logits = torch.cat(parts, -1) if parts[1:] else parts[0]
        mass = probabilities(logits, None, layer_pass.sinks)[0, :, :, 0]  # (H, G, rows)
        output = None
        for values, share in zip(arriving, mass.split(TOKENS_AT_ONCE, -1), strict=True):
            part = share @ values[: share.shape[-1]].transpose(0, 1).float()
            output = part if output is None else output + part
        assert output is not None
        by_token = mass.mean(1)
        if self.present is not None:
            by_token = by_token.new_zeros(len(by_token), self.tokens).index_copy_(1, position, by_token)
        return Answer(by_token, output.flatten(0, 1))

    def _positions(self, device: torch.device) -> Tensor:
        """(rows,) positions of the stored tokens."""
        every = torch.arange(self.tokens, device=device)
        if self.present is None:
            return every
        return torch.cat([self.present.to(device), every[len(self.present) + self.gaps :]])

    def follow(self, before: Slots, plan: Plan, leaving: Tensor) -> None:
        """Update the owners after a plan was applied to the table `before` and its slots `leaving` (H, S) left."""
        assert self.owner is not None
        position = before.position[0].long()
        dropped = self.capacity
        moved = torch.arange(self.capacity + 1, device=position.device).repeat(len(position), 1)
        moved.scatter_(1, torch.where(leaving, position, dropped), dropped)
        if plan.edges is not None:
            source = position.gather(1, plan.edges.source[0])
            target = position.gather(1, plan.edges.target[0])
            moved.scatter_(1, torch.where(plan.edges.active[0], source, dropped), target)
            moved[:, dropped] = dropped
        # Only the device may use the owners until it is synchronised.
        self.owner.copy_(moved.gather(1, self.host.fetch(self.owner)), non_blocking=self.host.pinned)

    def columns(self, slots: Slots) -> Tensor:
        """(H, S) position of each slot, `capacity` for invalid ones."""
        return torch.where(slots.valid[0], slots.position[0].long(), self.capacity)

    def owned(self) -> Tensor:
        """(H, T) owners of the tokens seen so far, on the device; `capacity` for dropped tokens."""
        assert self.owner is not None
        return self.host.fetch(self.owner)[:, : self.tokens]

    def stored(self, name: str, heads: Sequence[int]) -> Stored:
        """The `keys` or `values` of some KV heads in the format on disk; absent tokens are zeros."""
        self.host.settle()
        units: list[np.ndarray] = []
        norms: list[np.ndarray] = []
        errors = []
        for index, block in enumerate(getattr(self, name)):
            filled = block[: self.rows - index * TOKENS_AT_ONCE]  # (tokens, H, d)
            exact = filled[:, list(heads)].transpose(0, 1).float()
            norm = exact.norm(dim=-1)
            unit = (exact / norm.clamp_min(TINY)[..., None]).half()
            length = norm.half()
            error = (unit.float() * length.float()[..., None] - exact).norm(dim=-1) / norm.clamp_min(TINY)
            units.append(unit.numpy())
            norms.append(length.numpy())
            errors.append(float(error.max()))
        arrays = [np.concatenate(parts, 1) for parts in (units, norms)]
        if self.absent is not None:
            place = self._positions(torch.device("cpu")).numpy()
            for number, array in enumerate(arrays):
                arrays[number] = np.zeros((len(array), self.tokens, *array.shape[2:]), array.dtype)
                arrays[number][:, place] = array
        return Stored(arrays[0], arrays[1], max(errors))
