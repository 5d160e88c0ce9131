"""Scores without attention."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvlab.core.contract import AttentionPass, Slots
from kvlab.core.methods.scorers.wrapper import SlotScorer


@dataclass(frozen=True)
class Recency(SlotScorer):
    """Score = position: the oldest token is the least important (local window, StreamingLLM)."""

    costs_no_step: ClassVar[bool] = True

    def rate(self, slots: Slots) -> Tensor:
        return slots.position.float()


@dataclass(frozen=True)
class Unscored(SlotScorer):
    """No score (full cache)."""

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        return {}

    def rate(self, slots: Slots) -> Tensor:
        return slots.score
