"""Budgets that fall linearly with depth (PyramidPool, paper section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.core.methods.allocators.rounding import proportional
from kvlab.core.methods.allocators.uniform import EqualHeads


@dataclass(frozen=True)
class Linear(EqualHeads):
    """L_k = L_0 (1 + k / (m - 1) * (1 / beta - 1)) with L_0 = 2 b / (1 + 1 / beta), for an average of b slots per
    layer.

    The first layer gets `beta` times what the last gets, and the layers sum to m * b exactly. The paper prints k / m,
    which never reaches L_0 / beta (`printed` keeps that shape, scaled to the same total), and a wrong total. No layer
    gets more than the prompt's tokens, unless every layer does.
    """

    beta: float = 4.0
    printed: bool = False

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        last = num_layers if self.printed else max(num_layers - 1, 1)
        shares = [1 + layer / last * (1 / self.beta - 1) for layer in range(num_layers)]
        return proportional(shares, average * num_layers, 1, max(tokens, average))
