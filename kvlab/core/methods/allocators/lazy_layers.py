"""SimLayerKV: layers that look at sinks and recent tokens only keep no others."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.slot_columns import log_total
from kvlab.core.contract.view import View
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.selectors.top_k import LowestScore


@dataclass(frozen=True)
class LazyLayers(Uniform):
    """A layer is lazy if the slots that `protect` keeps get more than `threshold` of its attention; needs no budget.

    The attention is that of the prompt's last `rows` queries, mean over queries and all heads. A lazy layer keeps the
    protected slots, any other layer its whole prompt.
    """

    threshold: float = 0.9
    rows: int = 1
    protect: LowestScore = field(default_factory=LowestScore)

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # a field in the protocol
        return Capabilities(prompt_rows=lambda tokens: self.rows)

    def head_budgets(self, view: View) -> Tensor:
        """Slots (B, H), the same for all heads of a layer."""
        slots, rows = view.slots, min(self.rows, view.seen.num_new)
        logits = view.seen.last_logits(rows) + slots.log_mass_of_heads()[:, :, :, None]
        mass = (logits - log_total(logits, view.seen.sinks)).exp().nan_to_num(0.0)  # (B, H, G, r, S)
        stays = self.protect.protected(view) & slots.valid
        share = (mass * stays[:, :, None, None]).sum(-1)
        real = view.seen.rows_seen(rows)[:, :1, :1].clamp(1, rows)  # (B or 1, 1, 1): every query sees the first slot
        lazy = share.sum((1, 2, 3)) / (share[0, ..., 0].numel() * real[:, 0, 0]) > self.threshold
        return torch.where(lazy[:, None], stays.sum(-1), slots.live())
