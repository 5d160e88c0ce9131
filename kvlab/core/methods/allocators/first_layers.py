"""Keep everything in the first layers, and share the rest among the others."""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.core.methods.allocators.rounding import proportional
from kvlab.core.methods.allocators.uniform import EqualHeads


@dataclass(frozen=True)
class FirstLayers(EqualHeads):
    """The first `skip` layers keep the whole prompt, the others get equal shares of the rest (key norm).

    As published, whole layers come in addition to the budget; here they count, and the sum is the model's budget. If
    they would leave the others less than half of the average, they are limited so that this half remains.
    """

    skip: int = 2

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        """Slots of each layer, first to last; equal if everything fits, or if no layer is left."""
        others = num_layers - self.skip
        if average >= tokens or self.skip < 1 or others < 1:
            return [average] * num_layers
        total = average * num_layers
        half = -(-average // 2)
        first = min(tokens, (total - others * half) // self.skip)
        return [first] * self.skip + proportional([1.0] * others, total - first * self.skip, 1, tokens)
