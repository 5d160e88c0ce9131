"""PyramidInfer: budgets that fall along half a cosine from the first layer to the last."""

import math
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.contract import EqualHeads, View, proportional

Schedule = Literal["compound", "direct"]


@dataclass(frozen=True)
class CosineDecay(EqualHeads):
    """Layer i of L passes on the share decay_i = (1 - ratio) (cos(pi i / L) + 1) / 2 + ratio of its context.

    `compound`, as published: a layer keeps what reaches it after the cuts of the layers before, so its context is
    proportional to decay_0 * ... * decay_(i-1). With decay_0 = 1 the first two layers keep the same. `direct`:
    proportional to decay_i only. With `compound` only every `interval`-th layer cuts.

    `region` is the share of the prompt that is recent and never cut: 1 + int(region * T) tokens, kept by every layer,
    so that the decay applies to the rest; 0 applies it to everything. If the region fills the average, all layers get
    that. No context is cut below `minimum` slots.

    Contexts are scaled to the requested total. With `free` there is no total: starting from the whole prompt, each
    layer cuts to int(context * decay_i), unless that is `minimum` or less (the authors' code).
    """

    ratio: float = 0.9
    schedule: Schedule = "compound"
    region: float = 0.0
    minimum: int = 0
    interval: int = 1
    free: bool = False

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        """Falling budgets with sum `average * num_layers`, none above the prompt's `tokens`."""
        recent = self.recent(tokens)
        base = average - recent
        context = tokens - recent
        if average >= tokens or base <= 0:
            return [average] * num_layers
        cuts = [self.cut(layer, num_layers) for layer in range(num_layers)]
        weights = cuts if self.schedule == "direct" else list(accumulate([1.0, *cuts[:-1]], mul))
        least = min(max(self.minimum, 1), base)
        return [recent + slots for slots in proportional(weights, base * num_layers, least, context)]

    def head_budgets(self, view: View) -> Tensor | None:
        """Lengths (B, H) by the decays only if they are `free`; else None."""
        if not self.free:
            return None
        rows = [self.lengths(tokens, view.num_layers)[view.layer_idx] for tokens in view.tokens_seen.tolist()]
        return torch.tensor(rows, device=view.budget.device)[:, None].expand_as(view.budget).contiguous()

    def lengths(self, tokens: int, num_layers: int) -> list[int]:
        """Slots of each layer for a prompt of `tokens`, by the decays only."""
        recent = self.recent(tokens)
        kept = []
        context = tokens - recent
        least = min(self.minimum, context)
        for layer in range(num_layers):
            through = int(context * self.cut(layer, num_layers))
            through = through if through > least else context
            kept.append(recent + (through if self.schedule == "direct" else context))
            context = context if self.schedule == "direct" else through
        return kept

    def recent(self, tokens: int) -> int:
        """Number of newest prompt tokens that no layer cuts."""
        return min(tokens, 1 + int(tokens * self.region)) if self.region else 0

    def cut(self, layer: int, num_layers: int) -> float:
        """Share of its context that a layer passes on."""
        if self.schedule != "direct" and layer % self.interval:
            return 1.0
        return (1 - self.ratio) * (math.cos(math.pi * layer / num_layers) + 1) / 2 + self.ratio
