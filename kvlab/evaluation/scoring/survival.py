"""Track whether the tokens of a prompt's hidden statements still have slots after the answer, and can be reached.

Beside it stands the closed form of random draws at the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvlab.core.cache.settings import Observer
from kvlab.core.contract import Plan, Slots, View
from kvlab.core.methods.scorers.time_stamps import OF_PROMPT

GONE = -1
PADDING = -2
Protected = Callable[[View], Tensor]  # (B, H, S) bool, slots that are never evicted


@dataclass(frozen=True)
class Draws:
    """What random draws at the method's own decisions would have left of some tokens, as means over them.

    At each decision that evicts, W of K + W slots leave, drawn evenly: a token survives E of them in one head with
    (K / (K + W))^E, and in at least one of H heads with 1 - (1 - s)^H (Random Attention, arXiv 2609.03430). Counted are
    the slots that compete: neither protected, nor the prompt's where a method keeps it. K and W may change from one
    decision to the next; `one_head` and `any_head` are the exact products over decisions and heads.
    """

    evictions: float  # E, mean over layers, heads and tokens
    kept: float  # K, mean over these decisions
    dropped: float  # W
    one_head: float
    any_head: float  # of `heads`
    tokens: int
    heads: int  # KV heads of all layers


@dataclass(frozen=True)
class Survival:
    """What is left of some tokens of a prompt.

    `own` and `merged` are means over layers and KV heads; the rest was dropped. `unreachable` is the global eviction
    ratio of arXiv 2603.01426: the share of tokens with no slot in any layer and head. `consensus` is the share of
    layers and heads that hold a token, mean over the reachable ones: 1 if all heads hold the same tokens (None: no
    token is reachable). The paper's consensus compares heads within a layer; here it is that of all heads.
    """

    own_slots: float  # in a slot of their own
    merged: float  # in a slot that stands for several tokens
    unreachable: float = 0.0
    consensus: float | None = None
    draws: Draws | None = None
    parts: tuple[Survival, ...] = ()  # of each part of the prompt that is tracked by itself, in order


class HiddenTokenTracker(Observer):
    """Observer that tracks which slot owns each chosen token of every row.

    A slot is identified by a position. A slot merged into several is tracked to the one with the largest value weight.
    `parts` are sets of positions for each row, among the chosen ones, whose survival is measured by itself too.
    `protected`: the slots that the method never evicts, which no draw would.
    """

    attended = Observer.attended  # attention moves no tokens

    def __init__(
        self,
        positions: Sequence[Sequence[int]],
        device: torch.device,
        parts: Sequence[Sequence[Sequence[int]]] = (),
        protected: Protected | None = None,
    ) -> None:
        self.parts = [list(map(set, row)) for row in parts] or [[] for _ in positions]
        widest = max(len(row) for row in positions)
        padded = [[*row, *[PADDING] * (widest - len(row))] for row in positions]
        self.start = torch.tensor(padded, dtype=torch.int64, device=device)[:, None]  # (B, 1, N)
        self.protected = protected
        self._owner: dict[int, Tensor] = {}  # per layer, (B, H, N): position of each token's slot
        # Per layer, (B, H, N): index of that slot when it was last searched for, and the number of slots then.
        self._places: dict[int, tuple[Tensor, int]] = {}
        self._drawn: dict[int, Tensor] = {}  # per layer, (4, B, H, N): log survival, and sums of 1, K and W

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Update the owner of every token that this decision merges or drops."""
        owner = self._owner_of(layer_idx, before.position.shape[1])
        place, exists = self._find(layer_idx, before, owner)
        self._draw(layer_idx, view, plan, before, place, exists)
        leaves = exists & ~plan.keep.gather(2, place)
        if plan.edges is None:
            self._owner[layer_idx] = owner.masked_fill(leaves, GONE)
        else:
            edges = plan.edges
            names = before.position.long().gather(2, edges.source)
            mine = (names[:, :, None] == owner[..., None]) & edges.active[:, :, None]  # (B, H, N, E)
            share = torch.where(mine, edges.value_weight[:, :, None].float(), -1.0)
            best = share.argmax(-1)
            into = before.position.long().gather(2, edges.target).gather(2, best)
            target = torch.where(mine.any(-1), into, GONE)
            self._owner[layer_idx] = torch.where(leaves, target, owner)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keep only some rows of the batch."""
        self.start = self.start[list(rows)]
        self.parts = [self.parts[row] for row in rows]
        self._owner = {layer: owner[list(rows)] for layer, owner in self._owner.items()}
        self._places = {}
        self._drawn = {layer: drawn[:, list(rows)] for layer, drawn in self._drawn.items()}

    def survival(self, cache: Any) -> list[Survival]:
        """One entry per row, for the cache's current state."""
        own_slots = torch.zeros(())
        merged = torch.zeros(())
        heads = 0
        for layer in cache.compressed_layers():
            owner = self._owner_of(layer.layer_idx, layer.slots.position.shape[1])
            place, exists = self._find(layer.layer_idx, layer.slots, owner)
            alone = layer.slots.votes.gather(2, place) <= 1
            own_slots = own_slots + (exists & alone).float().sum(1).cpu()
            merged = merged + (exists & ~alone).float().sum(1).cpu()
            heads += owner.shape[1]
        rows = zip(self.start[:, 0].tolist(), (own_slots / heads).tolist(), (merged / heads).tolist(), strict=True)
        found = []
        for row, parts, draws in zip(rows, self.parts, self._draws(), strict=True):
            shares: dict[int, Shares] = {token: pair for token, *pair in zip(*row, strict=True) if token != PADDING}
            every = tuple(_mean([shares[position] for position in sorted(part)]) for part in parts)
            found.append(replace(_mean(list(shares.values())), parts=every, draws=draws))
        return found

    def _draw(self, layer_idx: int, view: View, plan: Plan, before: Slots, place: Tensor, exists: Tensor) -> None:
        """Note what an even draw of this decision's victims would mean for every token that has been read."""
        valid = before.valid
        leaving = (valid & ~plan.keep).sum(-1, keepdim=True)  # (B, H, 1)
        was_read = (self.start >= 0) & (self.start < view.tokens_seen[:, None, None])
        competes = was_read & (leaving > 0)  # (B, H, N)
        rivals = valid
        safe = None if self.protected is None else self.protected(view)
        if OF_PROMPT in before.extra:  # stays as long as the budget holds it
            safe = torch.zeros_like(valid) if safe is None else safe
            kept = safe | before.extra[OF_PROMPT].bool()
            holds = (valid & ~kept).sum(-1, keepdim=True) >= leaving
            safe = torch.where(holds, kept, safe)
        if safe is not None:
            rivals = valid & ~safe
            competes &= ~(exists & safe.gather(2, place))
        total = rivals.sum(-1, keepdim=True)
        dropped = leaving.minimum(total)
        stay = total - dropped
        share = stay.double() / total.clamp_min(1)
        noted = torch.stack([share.log(), torch.ones_like(share), stay.double(), dropped.double()])  # (4, B, H, 1)
        self._drawn[layer_idx] = torch.where(competes, noted, 0.0) + self._drawn.get(layer_idx, 0.0)

    def _draws(self) -> list[Draws | None]:
        """One entry per row; None before the first decision."""
        if not self._drawn:
            return [None] * len(self.parts)
        every = torch.cat(list(self._drawn.values()), 2).cpu()  # (4, B, layers * heads, N)
        found: list[Draws | None] = []
        for row in range(every.shape[1]):
            logs, evictions, kept, dropped = every[:, row][..., self.start[row, 0].cpu() >= 0]
            survives = logs.exp()
            total = float(evictions.sum())
            found.append(
                Draws(
                    evictions=float(evictions.mean()),
                    kept=float(kept.sum()) / max(total, 1.0),
                    dropped=float(dropped.sum()) / max(total, 1.0),
                    one_head=float(survives.mean()),
                    any_head=float((1 - (1 - survives).prod(0)).mean()),
                    tokens=survives.shape[1],
                    heads=survives.shape[0],
                )
            )
        return found

    def _find(self, layer_idx: int, slots: Slots, owner: Tensor) -> tuple[Tensor, Tensor]:
        """(index of the slot at position `owner`, whether it exists), both (B, H, N).

        Few decisions move slots, so all are searched only where a token's slot is not where it was; on a GPU, which
        would have to wait for that answer, always.
        """
        place, width = self._places.get(layer_idx, (owner, -1))
        if 0 <= width <= slots.valid.shape[2] and owner.device.type == "cpu":
            exists = (slots.position.gather(2, place) == owner) & slots.valid.gather(2, place)
            if bool((exists | (owner < 0)).all()):
                return place, exists
        same = (slots.position.long()[:, :, None] == owner[..., None]) & slots.valid[:, :, None]
        place = same.int().argmax(-1)
        self._places[layer_idx] = place, slots.valid.shape[2]
        return place, same.any(-1)

    def _owner_of(self, layer_idx: int, heads: int) -> Tensor:
        if layer_idx not in self._owner:
            self._owner[layer_idx] = self.start.expand(-1, heads, -1).clone()
        return self._owner[layer_idx]


Shares = Sequence[float]  # of layers and heads that hold a token: in a slot of its own, in a shared one


def _mean(shares: Sequence[Shares]) -> Survival:
    held = [alone + merged for alone, merged in shares]
    reachable = [share for share in held if share > 0]
    count = max(len(shares), 1)
    return Survival(
        own_slots=sum(alone for alone, _ in shares) / count,
        merged=sum(merged for _, merged in shares) / count,
        unreachable=1 - len(reachable) / count if shares else 0.0,
        consensus=sum(reachable) / len(reachable) if reachable else None,
    )
