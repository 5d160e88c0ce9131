"""The first layers keep the whole text, and the others share what is left."""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.methods.allocators.uniform import EqualHeads
from kvlab.methods.allocators.whole import proportional


@dataclass(frozen=True)
class FirstLayers(EqualHeads):
    """The first `skip` layers keep the prompt's tokens and the others equal shares of the rest (key norm's skipping).

    As published, whole layers come on top of the budget; here they are in it, and the sum is the model's. Where they
    would leave the others less than half of the average, they keep only what that half leaves them.
    """

    skip: int = 2

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        """Slots of each layer, first to last; equal ones where all fits, or where no layer is left."""
        others = num_layers - self.skip
        if average >= tokens or self.skip < 1 or others < 1:
            return [average] * num_layers
        total = average * num_layers
        half = -(-average // 2)
        first = min(tokens, (total - others * half) // self.skip)
        return [first] * self.skip + proportional([1.0] * others, total - first * self.skip, 1, tokens)
