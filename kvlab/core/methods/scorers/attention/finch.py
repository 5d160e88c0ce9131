"""Attention from the question at the prompt's end, each query weighed by how many tokens it saw (Finch)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.view import Seen, Slots
from kvlab.core.methods.scorers.prompt_scorer import PromptScorer


@dataclass(frozen=True)
class QuestionAttention(PromptScorer):
    """Score_j = sum over the last `window` queries i of (i + 1) A[i, j], mean over the group, set at prefill.

    Attention weights of a later query are smaller because more tokens share them; i + 1 is their number.
    """

    window: int = 32

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(prompt_rows=self.prompt_rows)

    def prompt_rows(self, tokens: int) -> int:
        return self.window

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 on the first prefill."""
        if not first:
            return {}
        newest = slots.position.masked_fill(~slots.valid, -1).amax((1, 2)).float()  # (B,)
        age = torch.arange(min(self.window, seen.num_new) - 1, -1, -1, device=newest.device)
        visible = (newest[:, None] + 1 - age).clamp_min(0)  # (B, r)
        return {"score": seen.column_mass(self.window, visible)}
