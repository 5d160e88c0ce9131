"""Scores without attention."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvlab.core.contract import AttentionPass, Capabilities, Slots
from kvlab.core.methods.scorers.wrapper import PromptScorer


@dataclass(frozen=True)
class Recency(PromptScorer):
    """Score = position: the oldest token is the least important (local window, StreamingLLM)."""

    costs_no_step: ClassVar[bool] = True
    # The score is derived from the position, and a step changes nothing.
    capabilities: ClassVar[Capabilities] = Capabilities(
        note=lambda slots, layer_pass: None, rate=lambda slots: slots.position.float()
    )

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        return {"score": slots.position.float()}


@dataclass(frozen=True)
class Unscored(PromptScorer):
    """No score (full cache)."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        note=lambda slots, layer_pass: None, rate=lambda slots: slots.score
    )

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        return {}
