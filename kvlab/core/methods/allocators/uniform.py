"""Equal budgets for all layers and heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvlab.core.contract.parts import NONE, Capabilities
from kvlab.core.contract.view import AttentionPass, Slots, View


class EqualHeads:
    """The head part of an allocator with equal heads."""

    capabilities: ClassVar[Capabilities] = NONE

    def head_budgets(self, view: View) -> Tensor | None:
        return None

    def statistic(self, slots: Slots, layer_pass: AttentionPass) -> Tensor | None:
        return None


@dataclass(frozen=True)
class Uniform(EqualHeads):
    """Equal budgets."""

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        return [average] * num_layers
