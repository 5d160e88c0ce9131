"""ChunkKV: keep or evict whole chunks of text, the same in every head of a layer; and its gate by entropy."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from kvlab.core.contract import Capabilities, LowestScore, Victims, View, Wrapper

TINY = 1e-8


@dataclass(frozen=True)
class _Chunks:
    """The chunk of each slot in text order: `number` (B, 1, S), rising; `valid` (B, 1, S)."""

    number: Tensor
    valid: Tensor

    def sum(self, value: Tensor) -> Tensor:
        """Sum (B, 1, S) of `value` (B, 1, S) over each slot's chunk."""
        total = torch.zeros_like(value).scatter_add(2, self.number, torch.where(self.valid, value, 0.0))
        return total.gather(2, self.number)

    def count(self, value: Tensor) -> Tensor:
        """Slots (B, 1, S) of each slot's chunk, in the dtype of `value`."""
        return self.sum(torch.ones_like(value)).clamp_min(1)

    def mean(self, value: Tensor) -> Tensor:
        """Mean (B, 1, S) over each slot's chunk."""
        return self.sum(value) / self.count(value)

    def median(self, of_chunk: Tensor) -> Tensor:
        """Lower median (B, 1, 1) over chunks of a number that the slots of a chunk share."""
        one = self.valid & (self.number != self.number.roll(1, -1))  # of each chunk
        one[..., 0] = self.valid[..., 0]
        ordered = torch.where(one, of_chunk, torch.inf).sort(-1).values
        return ordered.gather(2, ((one.sum(-1, keepdim=True) - 1) // 2).clamp_min(0))


def _by_both(score: Tensor, first: Tensor) -> Tensor:
    """Places (B, 1, S), lowest first by `first`, and by `score` where that is equal; ties by place."""
    by_score = score.argsort(stable=True, dim=-1)
    return by_score.gather(2, first.gather(2, by_score).argsort(stable=True, dim=-1))


@dataclass(frozen=True)
class Reordering(Wrapper):
    """Base class of selectors that apply `inner` to other scores: they protect what it does."""

    inner: LowestScore = field(default_factory=LowestScore)
    across_heads: ClassVar[bool] = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(across_heads=self.across_heads, protected=self.inner.protected)


@dataclass(frozen=True)
class Chunks(Reordering):
    """Rank slots by their chunk's score, then apply `inner`; a chunk is `length` tokens from the start of the text.

    A chunk's score is the mean over its slots of the sum over heads. If the budget ends within a chunk, its slots are
    ranked by their own sum over heads.
    """

    across_heads: ClassVar[bool] = True

    length: int = 20

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The inner selector's, by rank of chunks, then of slots."""
        slots = view.slots
        order = slots.in_text()
        score = (slots.score.nan_to_num(nan=0.0) * slots.valid).gather(2, order).sum(1, keepdim=True)  # (B, 1, S)
        # Chunks of `length` tokens from the start of the text; all heads have the same slots.
        valid = slots.valid.gather(2, order)[:, :1]
        position = slots.position.gather(2, order)[:, :1].long()  # chunk numbers may overflow the dtype of positions
        which = torch.div(position, self.length, rounding_mode="floor")
        new = torch.ones_like(valid)
        new[..., 1:] = which[..., 1:] != which[..., :-1]
        chunks = _Chunks(new.cumsum(-1) - 1, valid)
        rank = self.worst_first(score, chunks).argsort(-1).expand_as(order).float()
        ranked = torch.zeros_like(rank).scatter(2, order, rank)
        return self.inner.victims(replace(view, slots=replace(slots, score=ranked)), excess, most, barred)

    def worst_first(self, score: Tensor, chunks: _Chunks) -> Tensor:
        """Places (B, 1, S) in the text, worst first, of slots with `score` (B, 1, S) in text order."""
        return _by_both(score, chunks.mean(score))


@dataclass(frozen=True)
class GatedChunks(Chunks):
    """As `Chunks`, but only the best `few` slots of an important chunk with few high scores are ranked with it.

    Important: a mean score of at least the median over chunks. Few high scores: an entropy below the median, of the
    scores as shares of the chunk's sum, over the logarithm of its length. The other slots of such a chunk follow all
    chunks, by their own score.
    """

    few: int = 4

    def worst_first(self, score: Tensor, chunks: _Chunks) -> Tensor:
        """Places (B, 1, S) in the text, worst first."""
        mean = chunks.mean(score)
        # Entropy (B, 1, S) of each slot's chunk over its maximum; 0 of a chunk of one slot.
        scores = torch.where(chunks.valid, score, torch.inf)
        least = torch.full_like(score, torch.inf).scatter_reduce(2, chunks.number, scores, "amin")
        raised = score - least.gather(2, chunks.number).clamp_max(0.0)
        share = raised / (chunks.sum(raised) + TINY)
        entropy = -chunks.sum(share * (share + TINY).log())
        count = chunks.count(score)
        entropy = torch.where(count > 1, entropy / count.clamp_min(2).log(), 0.0).clamp(0.0, 1.0)
        gated = (mean >= chunks.median(mean)) & (entropy < chunks.median(entropy))
        # Place (B, 1, S) of each slot within its chunk, the highest score first.
        place = torch.arange(score.shape[-1], device=score.device).expand_as(chunks.number)
        start = torch.full_like(place, score.shape[-1]).scatter_reduce(2, chunks.number, place, "amin")
        by_chunk = _by_both(-score, chunks.number)
        rank = torch.empty_like(place).scatter(2, by_chunk, place) - start.gather(2, chunks.number)
        late = gated & (rank >= self.few)
        return _by_both(score, torch.where(late, -torch.inf, mean))
