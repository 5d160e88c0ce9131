"""How often a slot got less than its share of attention lately (Scissorhands)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.view import Seen, Slots
from kvlab.core.methods.scorers.attention.time_stamps import group_mass
from kvlab.core.methods.scorers.prompt_scorer import PromptScorer


@dataclass(frozen=True)
class Persistence(PromptScorer):
    """Score = -(number of the last `window` queries whose attention to the slot was below 1 / slots they saw).

    The attention is the mean over the group. Only queries that saw the slot count. Of equal scores the older goes
    first.
    """

    window: int = 400

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(prompt_rows=self.prompt_rows, recalls=self.window, recall=self.recall, reads_logits=True)

    def prompt_rows(self, tokens: int) -> int:
        return self.window

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 on the first prefill; later tokens keep score 0."""
        if not first:
            return {}
        rows = min(self.window, seen.num_new)
        newest = slots.position.masked_fill(~slots.valid, -1).amax((1, 2))  # (B,)
        time = newest[:, None] - torch.arange(rows - 1, -1, -1, device=newest.device)
        return {"score": _score(slots, group_mass(slots, seen, rows), time)}

    def recall(self, slots: Slots, seen: Seen) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 from the newest queries."""
        mass = seen.recalled_mass(slots.position, self.window).mean(2)
        return {"score": _score(slots, mass, seen.recalled_queries(self.window)[1])}


def _score(slots: Slots, mass: Tensor, time: Tensor) -> Tensor:
    """Scores (B, H, S) from the attention `mass` (B, H, r, S) of queries at `time` (B, r)."""
    saw = slots.valid[:, :, None] & (slots.position[:, :, None] <= time[:, None, :, None])
    share = 1 / saw.sum(-1, keepdim=True).clamp_min(1)
    newness = (slots.position + 1) / (time.amax(-1)[:, None, None] + 2)  # below 1
    return newness - ((mass < share) & saw).sum(2)
