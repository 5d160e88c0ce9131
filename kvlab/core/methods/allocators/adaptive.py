"""AdaKV: heads compete for a layer's budget with their scores."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.contract import Allocator, EqualHeads, Uniform, View, round_to_total

FloorRule = Literal["blend", "rounded", "guarantee"]
TINY = 1e-20


@dataclass(frozen=True)
class HeadAdaptive(EqualHeads):
    """With H heads and on average b slots per head besides the window, head h gets c_h slots, sum c_h = H b.

    n_h is the number of the layer's H b highest scores in head h. The floor prevents starving heads:

    - `blend` (the authors' code): c_h = n_h (1 - floor) + floor b, rounded to the exact total;
    - `rounded`: the code's own rounding, round(n_h (1 - floor) + int(floor b)) per head, which does not keep the total;
    - `guarantee` (a common reading): each head's best floor b slots win outright and the rest compete.

    Every head keeps the window in addition. `normalize` weights a head's scores by the share of its mass in its best b
    slots. The first `skip` layers keep equal heads.
    """

    layers: Allocator = field(default_factory=Uniform)
    window: int = 32
    floor: float = 0.2
    rule: FloorRule = "blend"
    normalize: bool = False
    skip: int = 0

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        return self.layers.layer_budgets(average, tokens, num_layers)

    def head_budgets(self, view: View) -> Tensor | None:
        """Budgets (B, H) that sum to H times the layer's; equal if only the window fits, or everything.

        `rounded` budgets may miss the sum by up to a slot per head.
        """
        slots = view.slots
        heads = view.budget.shape[1]
        if view.layer_idx < self.skip or int(view.budget.min()) >= slots.valid.shape[-1]:
            return None
        base = view.budget[:, :1] - self.window  # (B, 1)
        context = slots.valid & (slots.position < (view.tokens_seen - self.window)[:, None, None])
        adapts = (base > 0) & (base < context.sum(-1))
        base = base.clamp_min(0)
        score = torch.nan_to_num(slots.score, nan=0.0).masked_fill(~context, 0.0)
        if self.normalize:
            # weighted by the share of each head's mass in its best `base` slots
            mass = score.sort(-1, descending=True).values
            best = torch.arange(mass.shape[-1], device=mass.device) < base[..., None]
            score = score * ((mass * best).sum(-1) / mass.sum(-1).clamp_min(TINY))[..., None]
        score = score.masked_fill(~context, -torch.inf)
        if self.rule == "rounded":
            counts = (_winners(score, base) * (1 - self.floor) + (base * self.floor).long()).round().long()
        else:
            if self.rule == "blend":
                wanted = _winners(score, base).double() * (1 - self.floor) + self.floor * base
            else:
                # every head's best floor share wins against all others
                rank = score.argsort(stable=True, dim=-1, descending=True).argsort(-1)
                safe = rank < (self.floor * base.double()).long()[..., None]
                wanted = _winners(score.masked_fill(safe & ~torch.isneginf(score), torch.inf), base).float()
            counts = round_to_total(wanted, base[:, 0] * heads)
        return torch.where(adapts, self.window + counts, view.budget)


def _winners(score: Tensor, base: Tensor) -> Tensor:
    """Number (B, H) of the layer's H * `base` (B, 1) highest scores (B, H, S) in each head."""
    flat = score.flatten(1)
    order = flat.argsort(stable=True, dim=-1, descending=True)
    first = torch.arange(flat.shape[1], device=flat.device) < base * score.shape[1]
    return torch.zeros_like(flat, dtype=torch.bool).scatter(1, order, first).view_as(score).sum(-1)
