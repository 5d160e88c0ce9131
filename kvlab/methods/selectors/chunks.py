"""ChunkKV: keep or evict whole chunks of text, the same in every head of a layer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kvlab.methods.core.contract import Capabilities, Victims
from kvlab.methods.core.view import Slots, View
from kvlab.methods.selectors.top_k import LowestScore


@dataclass(frozen=True)
class Chunks:
    """Rank slots by their chunk's score, then apply `inner`; a chunk is `length` tokens from the start of the text.

    A chunk's score is the mean over its slots of the sum over heads. If the budget ends within a chunk, its slots are
    ranked by their own sum over heads.
    """

    inner: LowestScore = field(default_factory=LowestScore)
    length: int = 20

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(across_heads=True, protected=self.protected, sinks=self.inner.sinks)

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The inner selector's, by rank of chunks, then of slots."""
        slots = view.slots
        order = slots.in_text()
        own = (slots.score.nan_to_num(nan=0.0) * slots.valid).gather(2, order).sum(1, keepdim=True)  # (B, 1, S)
        chunk = self.means(slots, order, own)
        by_own = own.argsort(stable=True, dim=-1)
        both = by_own.gather(2, chunk.gather(2, by_own).argsort(stable=True, dim=-1))
        rank = both.argsort(-1).expand_as(order).float()
        ranked = torch.zeros_like(rank).scatter(2, order, rank)
        return self.inner.victims(replace(view, slots=replace(slots, score=ranked)), excess, most, barred)

    def means(self, slots: Slots, order: Tensor, own: Tensor) -> Tensor:
        """Mean (B, 1, S) of `own` (B, 1, S) over each slot's chunk, in text order."""
        first = slice(0, 1)  # all heads have the same slots
        valid = slots.valid.gather(2, order)[:, first]
        position = slots.position.gather(2, order)[:, first].long()  # chunk numbers may overflow the dtype of positions
        which = torch.div(position, self.length, rounding_mode="floor")
        new = torch.ones_like(valid)
        new[..., 1:] = which[..., 1:] != which[..., :-1]
        segment = new.cumsum(-1) - 1
        total = torch.zeros_like(own).scatter_add(2, segment, own * valid)
        count = torch.zeros_like(own).scatter_add(2, segment, valid.to(own.dtype))
        return (total / count.clamp_min(1)).gather(2, segment)

    def protected(self, view: View) -> Tensor:
        return self.inner.protected(view)
