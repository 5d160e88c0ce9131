"""A head keeps what scores above a fixed number: no budget is given from outside."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from kvlab.methods.core.contract import Capabilities
from kvlab.methods.core.view import Seen, Slots, View
from kvlab.methods.selectors.top_k import LowestScore


@dataclass(frozen=True)
class AboveThreshold:
    """Each head gets as many slots as have a score of at least `threshold` or are protected (KVzap, DMSPress)."""

    threshold: float = 0.0
    protect: LowestScore = field(default_factory=LowestScore)

    @property
    def capabilities(self) -> Capabilities:
        """Asks for nothing."""
        return Capabilities()

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        """The average, everywhere: the scores decide."""
        return [average] * num_layers

    def head_budgets(self, view: View) -> Tensor:
        """(B, H): how many reach the threshold, the protected slots included."""
        stays = (view.slots.score >= self.threshold) | self.protect.protected(view)
        return (stays & view.slots.valid).sum(-1)

    def statistic(self, slots: Slots, seen: Seen) -> Tensor | None:
        """Nothing."""
        return None
