"""Merges made when a context was compressed: for each head and token, the token whose slot holds it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kvlab.core.attention.pass_view import PassSeen
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.view import Slots, View

LONGEST_CHAIN = 16  # merges in one decision that follow one another


@dataclass
class ContextMerges:
    """Observer (`kvlab.core.cache.settings.Observer`) of one sequence while its context of `tokens` is compressed.

    `owners` is by layer the position (H, tokens) of the slot that holds each token, its own or another's.
    """

    tokens: int
    owners: dict[int, Tensor] = field(default_factory=dict)

    def attended(self, layer_idx: int, slots: Slots, seen: PassSeen, output: Tensor) -> None:
        """Nothing to do."""

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Follow the merges of a decision."""
        if plan.edges is None:
            return
        position = before.position[0].long().clamp(0, self.tokens - 1)
        heads = position.shape[0]
        source, target = (position.gather(1, end[0]) for end in (plan.edges.source, plan.edges.target))
        own = torch.arange(self.tokens, device=position.device).expand(heads, -1)
        # Inactive edges write to a column that is cut off.
        source = torch.where(plan.edges.active[0], source, self.tokens)
        moved = torch.cat([own, own[:, :1]], 1).scatter(1, source, target)[:, :-1]
        for _ in range(LONGEST_CHAIN.bit_length() - 1):
            moved = moved.gather(1, moved)
        before_this = self.owners.get(layer_idx)
        self.owners[layer_idx] = moved if before_this is None else moved.gather(1, before_this)

    def most_common_owners(self) -> np.ndarray:
        """(tokens,) int64: the token whose slot most heads merged each token into; -1 where no head merged it."""
        found = np.full(self.tokens, -1)
        if not self.owners:
            return found
        owners = torch.cat(list(self.owners.values())).cpu().numpy()
        _, token = np.nonzero(owners != np.arange(self.tokens))
        owner = owners[owners != np.arange(self.tokens)]
        pairs, counts = np.unique(token * self.tokens + owner, return_counts=True)
        order = np.argsort(counts, kind="stable")  # the last assignment to a token is the most common
        found[pairs[order] // self.tokens] = pairs[order] % self.tokens
        return found


@dataclass(frozen=True)
class ContextShares:
    """Shares (tokens,) float64 of all layers and heads: `own` hold a token in its own slot, `merged` in another's."""

    own: np.ndarray
    merged: np.ndarray


def context_shares(layers: list[CompressedLayer], tokens: int, merges: ContextMerges) -> ContextShares:
    """Shares of layers and heads that hold each of the first `tokens` tokens.

    A token that was merged when the context was compressed counts as long as the slot it was merged into is there;
    merges of later steps are not followed.
    """
    own = np.zeros(tokens)
    merged = np.zeros(tokens)
    heads = 0
    for layer in layers:
        present = presence(layer, tokens)
        heads += present.shape[0]
        own += present.sum(0).cpu().numpy()
        owners = merges.owners.get(layer.layer_idx)
        if owners is not None:
            merged += (~present & present.gather(1, owners)).sum(0).cpu().numpy()
    return ContextShares(own / max(heads, 1), merged / max(heads, 1))


def presence(layer: CompressedLayer, tokens: int) -> Tensor:
    """(H, tokens) bool: which of the first `tokens` tokens have a slot of their own in each head."""
    slots = [table.visible() for table in layer.tables]
    position = layer.streams.join_padded([torch.where(part.valid, part.position, -1).long() + 1 for part in slots])
    present = torch.zeros(position.shape[1], tokens + 1, dtype=torch.bool, device=position.device)
    present.scatter_(1, torch.where(position[0] <= tokens, position[0], 0), True)
    return present[:, 1:]
