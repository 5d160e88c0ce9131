"""What became of a prompt's hidden statements: whether their tokens still have slots when the answer is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvlab.attention.pass_view import PassSeen
from kvlab.methods.core.plan import Plan
from kvlab.methods.core.view import Slots, View

GONE, NOBODY = -1, -2


@dataclass(frozen=True)
class Survival:
    """Shares of the hidden tokens, means over layers and KV heads; what is missing to 1 was dropped."""

    own: float  # still have a slot of their own
    merged: float  # live in a slot that stands for several tokens


class Followed:
    """Follows chosen tokens of every row from slot to slot; implements `kvlab.cache.settings.Observer`.

    A slot is named by a position, so following one is a chain of names. A slot that is spread over several follows the
    one that takes the largest share of its value.
    """

    def __init__(self, positions: Sequence[Sequence[int]], device: torch.device) -> None:
        widest = max(len(row) for row in positions)
        padded = [[*row, *[NOBODY] * (widest - len(row))] for row in positions]
        self.start = torch.tensor(padded, dtype=torch.int64, device=device)[:, None]  # (B, 1, N)
        self._owner: dict[int, Tensor] = {}  # by layer, (B, H, N): the position naming each token's slot

    def attended(self, layer_idx: int, slots: Slots, seen: PassSeen, output: Tensor) -> None:
        """Attention moves nobody."""

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Take every token along that this decision moves or drops."""
        owner = self._owner_of(layer_idx, before.position.shape[1])
        place, there = _find(before, owner)
        leaves = there & ~plan.keep.gather(2, place)
        target = torch.full_like(owner, GONE)
        if plan.edges is not None:
            edges = plan.edges
            names = before.position.long().gather(2, edges.source)
            mine = (names[:, :, None] == owner[..., None]) & edges.active[:, :, None]  # (B, H, N, E)
            share = torch.where(mine, edges.value_weight[:, :, None].float(), -1.0)
            best = share.argmax(-1)
            into = before.position.long().gather(2, edges.target).gather(2, best)
            target = torch.where(mine.any(-1), into, target)
        self._owner[layer_idx] = torch.where(leaves, target, owner)

    def survival(self, cache: Any) -> list[Survival]:
        """One a row, read from the cache as it is now."""
        own, merged, layers = torch.zeros(()), torch.zeros(()), 0
        for layer in cache.compressed_layers():
            owner = self._owner_of(layer.layer_idx, layer.slots.position.shape[1])
            place, there = _find(layer.slots, owner)
            alone = layer.slots.votes.gather(2, place) <= 1
            own = own + (there & alone).float().sum((1, 2)).cpu() / owner.shape[1]
            merged = merged + (there & ~alone).float().sum((1, 2)).cpu() / owner.shape[1]
            layers += 1
        count = (self.start[:, 0] != NOBODY).sum(1).cpu() * max(layers, 1)
        return [Survival(float(a / n), float(b / n)) for a, b, n in zip(own, merged, count, strict=True)]

    def _owner_of(self, layer_idx: int, heads: int) -> Tensor:
        if layer_idx not in self._owner:
            self._owner[layer_idx] = self.start.expand(-1, heads, -1).clone()
        return self._owner[layer_idx]


def _find(slots: Slots, owner: Tensor) -> tuple[Tensor, Tensor]:
    """(index of the slot so named, whether there is one), both (B, H, N)."""
    same = (slots.position.long()[:, :, None] == owner[..., None]) & slots.valid[:, :, None]
    return same.int().argmax(-1), same.any(-1)
