"""Variation of keys and values relative to the range of the following tokens (LagKV)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.view import Seen, Slots
from kvlab.core.methods.scorers.prompt_scorer import PromptScorer

TAIL = 2.0  # above every rank: slots without a following partition are evicted last, oldest first


@dataclass(frozen=True)
class Lag(PromptScorer):
    """Split the prompt after its `sinks` into partitions of `lag` tokens, and compare each with the next one.

    A token's key is scaled per channel to the range of the next partition; its standard deviation over channels is
    taken, and a softmax over its partition; likewise for its value. Score = rank by the mean of both, over `lag`, so
    each partition gives up equally many. The last full partition and what follows have no range and are kept.
    """

    sinks: int = 4
    lag: int = 128

    @property
    def capabilities(self) -> Capabilities:
        """The float32 copies of keys during prompt scoring were measured with the allocator."""
        return Capabilities(recall=self.recall, key_copies=3.0)

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        return self.recall(slots, seen) if first else {}

    def recall(self, slots: Slots, seen: Seen) -> dict[str, Tensor]:
        """The same for the current slots, in text order; needs no query."""
        order = slots.in_text()
        tokens = slots.live()  # (B, H): padding is at the end of the order
        score = TAIL + slots.position.float() / slots.position.shape[-1]
        parts = max((order.shape[-1] - self.sinks) // self.lag, 0)
        if parts < 2:
            return {"score": score}
        chosen = order[..., self.sinks : self.sinks + parts * self.lag]  # (B, H, parts * lag)
        both = [self._spread(states, chosen, parts) for states in (slots.keys, slots.values)]
        spread = (both[0] + both[1]) / 2  # (B, H, parts - 1, lag)
        rank = spread.argsort(dim=-1, stable=True).argsort(-1).float() / self.lag
        followed = self.sinks + self.lag * torch.arange(2, parts + 1, device=tokens.device) <= tokens[..., None]
        old = score.gather(2, chosen)[..., : -self.lag]
        rank = torch.where(followed[..., None].expand_as(rank), rank, old.unflatten(-1, rank.shape[-2:]))
        return {"score": score.scatter(2, chosen[..., : -self.lag], rank.flatten(-2))}

    def _spread(self, states: Tensor, chosen: Tensor, parts: int) -> Tensor:
        """Softmax (B, H, parts - 1, lag) over a partition of the deviation over channels, scaled to the next one's
        range.
        """
        index = chosen[..., None].expand(*chosen.shape, states.shape[-1])
        cut = states.gather(2, index).float().unflatten(2, (parts, self.lag))
        low, high = cut[:, :, 1:].amin(-2, keepdim=True), cut[:, :, 1:].amax(-2, keepdim=True)
        # Channels that are constant in the next partition would be divided by 0.
        scaled = (cut[:, :, :-1] - low) / (high - low).clamp_min(1e-6)
        return scaled.std(-1).softmax(-1)
