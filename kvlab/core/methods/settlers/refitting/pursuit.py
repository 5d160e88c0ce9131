"""Attention Matching's pursuit: select slots in lots, those that most reduce the missing mass."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities, Victims
from kvlab.core.contract.view import View
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.refitting.matching import TINY, observe, ridge_step


@dataclass(frozen=True)
class Pursuit:
    """Orthogonal matching pursuit over reference queries: kept slots must restore their mass, ignoring values.

    With A (N, S) the queries' attention and K the slots selected so far, w >= 0 minimizes ||A_K w - 1||^2 (with a small
    ridge towards 0), r = 1 - A_K w, and the slots with the largest sums of r_i A_ij join K, in `lots` lots of equal
    shares of the missing number. Sinks and the newest tokens are in K from the start.
    """

    sinks: int = 0
    recent: int = 1
    lots: int = 24
    references: int = 256
    window: int = 0

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            prompt_rows=self.prompt_rows, references=self.references, protected=self.protected, sinks=self.sinks
        )

    def prompt_rows(self, tokens: int) -> int:
        return max(self.window, 1)

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The `excess` (B, H) slots that were not selected."""
        slots = view.slots
        taken = self.protected(view) & slots.valid
        taken = taken if barred is None else taken | (barred & slots.valid)
        if view.phase == "prefill":
            taken = self._selected(view, taken, slots.live() - excess)
        order = slots.score.nan_to_num(nan=0.0).masked_fill(~slots.valid | taken, torch.inf)
        return Victims.lowest(replace(view, certain=False), order, excess, most, torch.inf)

    def protected(self, view: View) -> Tensor:
        return LowestScore(self.sinks, self.recent).protected(view)

    def _selected(self, view: View, taken: Tensor, wanted: Tensor) -> Tensor:
        """Selected slots (B, H, S), `wanted` (B, H) per head."""
        observed = observe(view, self.references, self.window, 1.0)
        rows, free = observed.mass * observed.weight.sqrt()[..., None], view.slots.valid
        whole = rows.sum(-1, keepdim=True)
        for lot in range(self.lots, 0, -1):
            missing = (wanted - taken.sum(-1)).clamp_min(0)
            count = (missing + lot - 1) // lot  # (B, H)
            gain = (rows.mT @ _residual(rows * taken[:, :, None], whole, taken))[..., 0]
            rank = gain.masked_fill(~free | taken, -torch.inf).argsort(stable=True, dim=-1, descending=True).argsort(-1)
            taken = taken | ((rank < count[..., None]) & free)
        return taken


def _residual(rows: Tensor, whole: Tensor, taken: Tensor) -> Tensor:
    """Missing part (B, H, N, 1) of the mass (B, H, N, 1) of all slots."""
    return whole - rows @ ridge_step(rows, whole, 1e-4, taken).clamp_min(TINY)
