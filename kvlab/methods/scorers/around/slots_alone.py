"""Scores as if the slots were all that queries attend to, with a state beside them left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from kvlab.methods.pipeline import Scorer
from kvlab.methods.view import Seen, Slots


@dataclass(frozen=True)
class SlotsAlone:
    """Another scorer's scores, of attention that sums to 1 over the slots whatever the state takes (LESS's code)."""

    scorer: Scorer

    @property
    def every_step(self) -> bool:
        """As the scorer does."""
        return self.scorer.every_step

    @property
    def needs_hidden_states(self) -> bool:
        """As the scorer does."""
        return self.scorer.needs_hidden_states

    @property
    def across_heads(self) -> bool:
        """As the scorer does."""
        return getattr(self.scorer, "across_heads", False)

    @property
    def state(self) -> Mapping[str, float]:
        """The scorer's own."""
        return self.scorer.state

    def prompt_rows(self, tokens: int) -> int:
        """As the scorer needs."""
        return self.scorer.prompt_rows(tokens) if hasattr(self.scorer, "prompt_rows") else 1

    def accumulate(self, slots: Slots, seen: Seen) -> dict[str, Tensor]:
        """As the scorer does."""
        return self.scorer.accumulate(slots, seen.of_slots()) if hasattr(self.scorer, "accumulate") else {}

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """The scorer's update from what the slots alone were given."""
        return self.scorer.update(slots, seen.of_slots(), first)
