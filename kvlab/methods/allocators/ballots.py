"""GVote: the budget of a head is what was chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from kvlab.methods.core.contract import Capabilities
from kvlab.methods.core.view import Seen, Slots, View
from kvlab.methods.scorers.lookahead.gvote import BALLOTS
from kvlab.methods.selectors.top_k import LowestScore


@dataclass(frozen=True)
class ChosenSlots:
    """Each head gets as many slots as were chosen at least once or are protected: no budget is given from outside."""

    protect: LowestScore = field(default_factory=LowestScore)

    @property
    def capabilities(self) -> Capabilities:
        """Asks for nothing."""
        return Capabilities()

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        """The average, everywhere: the heads decide."""
        return [average] * num_layers

    def head_budgets(self, view: View) -> Tensor:
        """(B, H): the size of the union of all choices, the protected slots included."""
        chosen = (view.slots.extra[BALLOTS] > 0) | self.protect.protected(view)
        return (chosen & view.slots.valid).sum(-1)

    def statistic(self, slots: Slots, seen: Seen) -> Tensor | None:
        """Nothing."""
        return None
