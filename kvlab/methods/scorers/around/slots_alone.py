"""Scores as if the slots were all that queries attend to, with a state beside them left out."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvlab.methods.scorers.around.around import Around
from kvlab.methods.view import Seen, Slots


@dataclass(frozen=True)
class SlotsAlone(Around):
    """Another scorer's scores, of attention that sums to 1 over the slots whatever the state takes (LESS's code)."""

    @property
    def every_step(self) -> bool:
        """As the scorer does."""
        return self.scorer.every_step

    @property
    def across_heads(self) -> bool:
        """As the scorer does."""
        return getattr(self.scorer, "across_heads", False)

    def accumulate(self, slots: Slots, seen: Seen) -> dict[str, Tensor]:
        """As the scorer does."""
        return super().accumulate(slots, seen.of_slots())

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """The scorer's update from what the slots alone were given."""
        return self.scorer.update(slots, seen.of_slots(), first)
