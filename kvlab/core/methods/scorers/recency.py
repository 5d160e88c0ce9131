"""Scores without attention."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.view import AttentionPass, Slots
from kvlab.core.methods.scorers.wrapper import PromptScorer


@dataclass(frozen=True)
class _Blind(PromptScorer):
    """Reads nothing and keeps no state."""

    def note(self, slots: Slots, layer_pass: AttentionPass) -> None:
        """Nothing changes."""


@dataclass(frozen=True)
class Recency(_Blind):
    """Score = position: the oldest token is the least important (local window, StreamingLLM)."""

    costs_no_step: ClassVar[bool] = True

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        return {"score": self.rate(slots)}

    @property
    def capabilities(self) -> Capabilities:
        """The score is derived from the position."""
        return Capabilities(note=self.note, rate=self.rate)

    def rate(self, slots: Slots) -> Tensor:
        return slots.position.float()


@dataclass(frozen=True)
class Unscored(_Blind):
    """No score (full cache)."""

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        return {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(note=self.note, rate=self.rate)

    def rate(self, slots: Slots) -> Tensor:
        return slots.score
