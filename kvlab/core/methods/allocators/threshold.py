"""Keep scores above a fixed threshold; needs no budget."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from kvlab.core.contract.view import View
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.selectors.top_k import LowestScore


@dataclass(frozen=True)
class AboveThreshold(Uniform):
    """Each head gets as many slots as score at least `threshold` or are protected (KVzap, DMSPress)."""

    threshold: float = 0.0
    protect: LowestScore = field(default_factory=LowestScore)

    def head_budgets(self, view: View) -> Tensor:
        """Number (B, H) of slots that reach the threshold or are protected."""
        stays = (view.slots.score >= self.threshold) | self.protect.protected(view)
        return (stays & view.slots.valid).sum(-1)
