"""One budget over all layers and heads, given to the model's highest scores."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kvlab.core.contract import AttentionPass, LowestScore, Slots, Uniform, View
from kvlab.core.contract.parts import Allocator, Scorer, Selector, capabilities_of

COUNTS = -1  # key of the result among the layers' statistics


class CountsProtected(Uniform):
    """Base class of allocators whose heads share the model's budget and get no less than what `select` protects."""

    shares_budget: ClassVar[bool] = True
    select: Selector  # a field of subclasses

    def fitted_to(self, score: Scorer, select: Selector, method_score: Scorer) -> tuple[Scorer, Allocator]:
        """Count what the chosen selector protects."""
        return score, replace(self, select=select)  # type: ignore[call-arg]  # a field of subclasses


@dataclass(frozen=True)
class ModelWide(CountsProtected):
    """All heads of all layers compete for the model's budget with their scores (KVzip's "pair").

    Slots that `select` protects in every head under equal budgets are kept; the rest of the budget goes to the highest
    other scores of the model. Ties prefer lower layers, then lower heads, then older slots; which of its own equal
    slots a head keeps is up to the selection. `level` "head" replaces all scores of a head by its maximum, so that
    whole heads win. With "rank" the best slots of a layer's heads compete together, then their second best, and so on,
    each with the mean of their scores, so that the heads of a layer keep equally many (KVCompose); the first layer
    competes with the highest of all layers' means, as in kvpress. Budgets sum to the model's per batch row, and no head
    gets less than its protected slots. If everything fits, heads stay equal.
    """

    across_layers: ClassVar[bool] = True

    level: Literal["slot", "head", "rank"] = "slot"
    select: Selector = field(default_factory=LowestScore)

    def statistic(self, slots: Slots, layer_pass: AttentionPass) -> Tensor | None:
        """Scores (B, H, S)."""
        return slots.score

    def head_budgets(self, view: View) -> Tensor | None:
        if bool((view.budget[:, 0] >= view.slots.valid.sum(-1).amax(-1)).all()):
            return None
        if COUNTS not in view.statistics:
            view.statistics[COUNTS] = self._counts(view)
        layers = sorted(layer for layer in view.statistics if layer != COUNTS)
        return view.statistics[COUNTS][:, layers.index(view.layer_idx)].to(view.budget.device)

    def _counts(self, view: View) -> Tensor:
        """Slots (B, L, H). Heads of all layers still have the same slots, so this layer's protection applies to all."""
        device = view.budget.device
        layers = sorted(view.statistics)
        scores = torch.stack([view.statistics[layer].to(device) for layer in layers], 1).float()  # (B, L, H, S)
        valid = view.slots.valid
        protected = protected_by(self.select, view) & view.slots.valid
        order = scores.nan_to_num(nan=0.0)
        if self.level == "head":
            order = order.masked_fill(~valid[:, None], -torch.inf).amax(-1, keepdim=True).expand_as(order)
        competing = (valid & ~protected)[:, None].expand_as(order)
        order = order.masked_fill(~competing, -torch.inf)
        together = 1
        if self.level == "rank":
            # protected slots are the same ones in all heads, so ranks end alike
            order, together = order.sort(-1, descending=True).values.mean(2, keepdim=True), order.shape[2]
            order[:, 0] = order.amax(1)
            competing = order > -torch.inf
        shape = order.shape
        order = order.flatten(1)
        safe = protected.sum(-1)[:, None].expand(-1, len(layers), -1)  # (B, L, H)
        left = view.budget.sum(-1) * len(layers) - safe.sum((1, 2))  # (B,)
        rank = torch.empty_like(order, dtype=torch.int64)
        place = torch.arange(order.shape[1], device=device).expand_as(rank)
        rank.scatter_(1, order.argsort(stable=True, dim=-1, descending=True), place)
        won = (rank < left[:, None] // together) & competing.flatten(1)
        counts = safe + won.view(shape).sum(-1)
        fits = view.budget[:, :1] >= valid.sum(-1).amax(-1, keepdim=True)  # (B, 1)
        return torch.where(fits[:, None], view.budget[:, None], counts)


def protected_by(select: Selector, view: View) -> Tensor:
    """Slots (B, H, S) a selection protects under the view's budgets; the newest token if it defines none."""
    return (capabilities_of(select).protected or LowestScore().protected)(view)
