"""Budgets from the variance of a layer's attention (D2O)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.budget import UNLIMITED
from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.view import Seen, Slots, View
from kvlab.core.methods.allocators.rounding import proportional


@dataclass(frozen=True)
class Variance:
    """Layer shares softmax(-f), with f the scaled variance over tokens of the attention each received (D2O).

    Layers with flat attention get more. `over` chooses how variances are scaled to [0, 1]: `layers` (default) by the
    smallest and largest layer mean, so that f compares layers; `heads`, the authors' code, by the smallest and largest
    head of the layer itself, before the mean over heads, which does not compare layers. The code averages over the
    batch; here each row decides for itself. Shares become integer budgets with the exact total, between 1 and the
    tokens seen. `spared` layers (the code's 0, 1 and last) keep everything, in addition to the budget. Needs every
    layer's statistic, so the pipeline must be deferred. `from_score`: the scorer already accumulates attention over all
    queries.
    """

    over: Literal["layers", "heads"] = "layers"
    spared: bool = False
    from_score: bool = True

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        """The average, until the prompt has been seen."""
        return [average] * num_layers

    @property
    def capabilities(self) -> Capabilities:
        """May need all queries of the prompt."""
        return Capabilities(prompt_rows=self.prompt_rows)

    def prompt_rows(self, tokens: int) -> int:
        """All, unless the score has accumulated them."""
        return 1 if self.from_score else tokens

    def statistic(self, slots: Slots, seen: Seen) -> Tensor | None:
        """Variance (B, H) over real tokens of the attention each received from the prompt."""
        received = slots.score if self.from_score else seen.column_mass()
        count = slots.valid.sum(-1).clamp_min(1)
        mean = received.masked_fill(~slots.valid, 0.0).sum(-1) / count
        return (received - mean[..., None]).square().masked_fill(~slots.valid, 0.0).sum(-1) / count

    def head_budgets(self, view: View) -> Tensor | None:
        """This layer's slots (B, H), the same for all heads."""
        layers = sorted(view.statistics)
        noted = [view.statistics[layer].to(view.budget.device) for layer in layers]  # may be on several devices
        shares = self._shares(torch.stack(noted, 1)).tolist()
        mine, averages, seen = layers.index(view.layer_idx), view.budget[:, 0].tolist(), view.tokens_seen.tolist()
        if self.spared and view.layer_idx in (layers[0], *layers[1:2], layers[-1]):
            return torch.full_like(view.budget, UNLIMITED)
        rows = [
            proportional(share, average * len(layers), 1, max(tokens, average))[mine]
            for share, average, tokens in zip(shares, averages, seen, strict=True)
        ]
        return torch.tensor(rows, device=view.budget.device)[:, None].expand_as(view.budget).contiguous()

    def _shares(self, variance: Tensor) -> Tensor:
        """Shares (B, L) from variances (B, L, H)."""
        variance = variance.double()
        flatness = _scaled(variance).mean(-1) if self.over == "heads" else _scaled(variance.mean(-1))
        return torch.softmax(-flatness, -1)


def _scaled(values: Tensor) -> Tensor:
    """Scale each row of the last dimension to [0, 1]; zeros if it is constant."""
    low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
    return (values - low) / torch.where(high > low, high - low, 1.0)
