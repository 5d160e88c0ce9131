"""Every layer and head gets the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvlab.methods.core.contract import NONE, Capabilities
from kvlab.methods.core.view import Seen, Slots, View


class EqualHeads:
    """An allocator's part over heads: none of them gets more than another."""

    capabilities: ClassVar[Capabilities] = NONE

    def head_budgets(self, view: View) -> Tensor | None:
        """None: equal."""
        return None

    def statistic(self, slots: Slots, seen: Seen) -> Tensor | None:
        """Nothing."""
        return None


@dataclass(frozen=True)
class Uniform(EqualHeads):
    """Equal budgets."""

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        """The average, everywhere."""
        return [average] * num_layers
