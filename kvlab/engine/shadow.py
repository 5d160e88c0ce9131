"""The shadow: one layer's uncompressed keys and values, and which slot each token lives in now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvlab.attention.seen import PassSeen
from kvlab.attention.slot_attention import NEVER, probabilities
from kvlab.methods.plan import Plan
from kvlab.methods.view import Slots

TOKENS_AT_ONCE = 4096
TINY = 1e-12


@dataclass(frozen=True)
class Truth:
    """What the last query of a pass would have got from the full cache: mass (H, T) group mean, output (Hq, d)."""

    mass: Tensor
    output: Tensor


@dataclass(frozen=True)
class Stored:
    """States as unit vectors (H, T, d) and norms (H, T), float16, and the largest |stored - state| / |state|."""

    unit: np.ndarray
    norm: np.ndarray
    error: float


class Shadow:
    """Keeps every token's key and value of one layer (batch of one), as the compressed run computed them.

    With prefill saving some of a prompt's tokens never reach a layer: it has no keys of them, so they get no mass here
    and count as dropped from the start.

    What is dropped lies at position `capacity`, where no token can be, so that looking things up there needs no case of
    its own.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens = 0
        self.keys: Tensor | None = None  # (1, H, capacity, d)
        self.values: Tensor | None = None
        self.owner: Tensor | None = None  # (H, capacity) position naming the slot each token lives in, or `capacity`
        self.itself: Tensor | None = None  # (H, capacity + 1) every position in its own column
        self.absent: Tensor | None = None  # (capacity,) bool: tokens that never reached this layer; None for none

    def append(self, slots: Slots, count: int) -> None:
        """Take over the `count` newest tokens of a slot table."""
        position = slots.position.masked_fill(~slots.valid, -1)
        # (1, H, count), in the order of the text
        newest = position.argmax(-1, keepdim=True) if count == 1 else position.topk(count, dim=-1).indices.flip(-1)
        index = newest[..., None].expand(-1, -1, -1, slots.keys.shape[-1])
        if self.keys is None:
            shape = (*slots.keys.shape[:2], self.capacity, slots.keys.shape[-1])
            self.keys, self.values = slots.keys.new_empty(shape), slots.values.new_empty(shape)
            self.itself = torch.arange(self.capacity + 1, device=slots.keys.device).repeat(shape[1], 1)
            self.owner = self.itself[:, :-1].clone()
            self._note_absent(slots.position.gather(2, newest)[0, 0].long())
        assert self.values is not None
        last = self.tokens + count
        place: slice | Tensor = slice(self.tokens, last)
        if self.tokens == 0 and self.absent is not None:
            place = (~self.absent).nonzero()[:count, 0]
            last = int(place[-1]) + 1
        self.keys[:, :, place] = slots.keys.gather(2, index)
        self.values[:, :, place] = slots.values.gather(2, index)
        self.tokens = last

    def _note_absent(self, position: Tensor) -> None:
        """Which positions before the last of the first pass's `position` (count,) are not among them."""
        assert self.keys is not None and self.values is not None and self.owner is not None
        absent = torch.arange(self.capacity, device=position.device) < position[-1]
        absent[position] = False
        if bool(absent.any()):
            self.absent, self.owner[:, absent] = absent, self.capacity
            self.keys[:, :, absent] = self.values[:, :, absent] = 0

    def truth(self, seen: PassSeen) -> Truth:
        """What the last query of this pass would have seen."""
        keys, values = self._known()
        assert self.itself is not None
        logits = seen.logits_at(keys, self.itself[None, :, : self.tokens])
        if self.absent is not None:
            logits = logits.masked_fill(self.absent[: self.tokens], NEVER)
        mass = probabilities(logits, None, seen.sinks)[
            0, :, :, 0
        ]  # (H, G, T); the newest token is always there to look at
        return Truth(mass.mean(1), (mass @ values[0].float()).flatten(0, 1))

    def follow(self, before: Slots, plan: Plan, leaving: Tensor) -> None:
        """Update the owners after a plan was applied to the table `before`, whose slots `leaving` (H, S) left."""
        assert self.owner is not None and self.itself is not None
        position, dropped = before.position[0].long(), self.capacity
        moved = self.itself.clone()
        moved.scatter_(1, torch.where(leaving, position, dropped), dropped)
        if plan.edges is not None:
            source = position.gather(1, plan.edges.source[0])
            target = position.gather(1, plan.edges.target[0])
            moved.scatter_(1, torch.where(plan.edges.active[0], source, dropped), target)
            moved[:, dropped] = dropped
        self.owner = moved.gather(1, self.owner)

    def columns(self, slots: Slots) -> Tensor:
        """(H, S): the position naming each slot, `capacity` for those that are not valid."""
        return torch.where(slots.valid[0], slots.position[0].long(), self.capacity)

    def owned(self) -> Tensor:
        """(H, T) owners of the tokens seen so far, `capacity` for those dropped."""
        assert self.owner is not None
        return self.owner[:, : self.tokens]

    def stored(self, name: str, heads: Sequence[int]) -> Stored:
        """The `keys` or `values` of some KV heads as they are written, made block by block."""
        keys, values = self._known()
        states = (keys if name == "keys" else values)[0]
        states = states if len(heads) == len(states) else states[list(heads)]
        parts = [_stored(block) for block in states.split(TOKENS_AT_ONCE, 1)]
        unit, norm = (np.concatenate([getattr(part, name) for part in parts], 1) for name in ("unit", "norm"))
        return Stored(unit, norm, max(part.error for part in parts))

    def _known(self) -> tuple[Tensor, Tensor]:
        assert self.keys is not None and self.values is not None
        return self.keys[:, :, : self.tokens], self.values[:, :, : self.tokens]


def _stored(states: Tensor) -> Stored:
    exact = states.float()
    norm = exact.norm(dim=-1)
    unit, length = (exact / norm.clamp_min(TINY)[..., None]).half(), norm.half()
    error = (unit.float() * length.float()[..., None] - exact).norm(dim=-1) / norm.clamp_min(TINY)
    return Stored(unit.cpu().numpy(), length.cpu().numpy(), float(error.max()))
