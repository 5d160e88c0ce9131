"""GVote: a head's budget is the number of chosen slots."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from kvlab.core.contract.view import View
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.lookahead.gvote import BALLOTS
from kvlab.core.methods.selectors.top_k import LowestScore


@dataclass(frozen=True)
class ChosenSlots(Uniform):
    """Each head gets as many slots as were chosen at least once or are protected; needs no budget."""

    protect: LowestScore = field(default_factory=LowestScore)

    def head_budgets(self, view: View) -> Tensor:
        """Size (B, H) of the union of all choices, including protected slots."""
        chosen = (view.slots.extra[BALLOTS] > 0) | self.protect.protected(view)
        return (chosen & view.slots.valid).sum(-1)
