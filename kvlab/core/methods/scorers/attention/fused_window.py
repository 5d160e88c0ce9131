"""Attention of the newest queries to older slots, fused over queries (MorphKV)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.view import Seen, Slots
from kvlab.core.methods.scorers.prompt_scorer import PromptScorer


@dataclass(frozen=True)
class FusedWindow(PromptScorer):
    """Score = sum or maximum over the last `window` queries of their attention to slots older than the window.

    A query's logits are summed over the group before the softmax, which is over the older slots alone (the authors'
    code). It keeps the logits of each query as they were; here kept queries look at the current slots again, which
    gives the same for slots that stayed.
    """

    window: int = 32
    over: Literal["sum", "max"] = "sum"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(prompt_rows=self.prompt_rows, recalls=self.window, recall=self.recall, reads_logits=True)

    def prompt_rows(self, tokens: int) -> int:
        return self.window

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 on the first prefill; decisions while decoding use `recall`."""
        return self._scored(slots, seen.last_logits(min(self.window, seen.num_new))) if first else {}

    def recall(self, slots: Slots, seen: Seen) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 of the current slots, from the newest queries."""
        return self._scored(slots, seen.recalled_logits(slots.position, self.window))

    def _scored(self, slots: Slots, logits: Tensor) -> dict[str, Tensor]:
        """Scores from `logits` (B, H, G, r, S), -inf at hidden slots."""
        newest = slots.position.masked_fill(~slots.valid, -1).amax(-1, keepdim=True).int()
        older = slots.valid & (slots.position <= newest - self.window)
        # nan_to_num: rows before the text see nothing, nor do any where there are no older slots
        share = torch.softmax(logits.sum(2).masked_fill(~older[:, :, None], -torch.inf), -1).nan_to_num(0.0)
        return {"score": share.sum(2) if self.over == "sum" else share.amax(2)}
