"""PyramidKV: budgets that fall linearly from the first layer to the last."""

from dataclasses import dataclass
from typing import Literal

import torch

from kvlab.core.contract import EqualHeads, round_to_total

Variant = Literal["paper", "code"]


@dataclass(frozen=True)
class Pyramid(EqualHeads):
    """Layer i of L keeps `window` slots and k_i = k_0 - i (k_0 - k_last) / (L - 1) others.

    With b = average - window, k_last = b / beta and k_0 = 2b - k_last, so that the k_i average to b. If the prompt has
    fewer than k_0 tokens before the window, k_0 is that number and k_last = 2b - k_0: a flatter line with the same
    mean. `paper` rounds this line to an exact total. `code` uses the authors' integer step (k_0 - k_last) // (L - 1),
    and equal budgets for a prompt shorter than 2b; since that step would keep up to L (L - 1) / 2 slots too many, the
    surplus is removed evenly from all layers (the remainder from the last ones).
    """

    window: int = 8
    beta: float = 20.0
    variant: Variant = "paper"

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        """Falling budgets with sum `average * num_layers`; equal if the window fills the average."""
        base = average - self.window
        context = tokens - self.window
        if base <= 0 or average >= tokens:
            return [average] * num_layers
        if num_layers == 1 or (self.variant == "code" and tokens < 2 * base):
            return [average] * num_layers
        if self.variant == "paper":
            first = min(2 * base - base / self.beta, context)
            last = 2 * base - first
            depth = torch.arange(num_layers, dtype=torch.float64) / (num_layers - 1)
            line = round_to_total(first - depth * (first - last), base * num_layers).tolist()
            return [self.window + slots for slots in line]
        highest = min(2 * base - int(base // self.beta), context)
        step = (highest - (2 * base - highest)) // (num_layers - 1)
        published = [self.window + highest - layer * step for layer in range(num_layers)]
        each, odd = divmod(sum(published) - average * num_layers, num_layers)
        return [slots - each - (layer >= num_layers - odd) for layer, slots in enumerate(published)]
