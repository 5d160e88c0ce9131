"""Attention accumulated over all queries, optionally decayed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.view import AttentionPass, Slots

NEGLIGIBLE = 1e-6


@dataclass(frozen=True)
class AccumulatedAttention:
    """Score_j = sum over queries of decay^age * A[query, j], mean over the group (H2O: decay 1; ZSMerge: 0.98)."""

    decay: float = 1.0
    every_step: bool = True
    needs_hidden_states: bool = False
    state: Mapping[str, float] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        """Sums can be updated in place."""
        return Capabilities(note=self.note, decay=self.decay)

    def accumulate(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        return self.update(slots, layer_pass, False)

    def note(self, slots: Slots, layer_pass: AttentionPass) -> None:
        """The update after a single query, in place."""
        if self.decay != 1.0:
            slots.score.mul_(self.decay)
        slots.score.add_(layer_pass.last_mass())

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32; rows with weights below 1e-6 are skipped."""
        if self.decay == 1.0:
            return {"score": slots.score + layer_pass.column_mass()}
        rows = self._rows(layer_pass.num_new)
        weights = self.row_weights(layer_pass.num_new, slots.score.device)[-rows:]
        mass = layer_pass.column_mass(rows, weights if rows > 1 else None)
        # Padding in front of a later turn is no query. Slots of this pass have no score to decay.
        queries = layer_pass.rows_seen() if layer_pass.num_new > 1 else 1
        return {"score": slots.score * self.decay**queries + mass}

    def row_weights(self, queries: int, device: torch.device) -> Tensor:
        """Weights (queries,) float32: the decay by age, and 0 where that is below 1e-6."""
        if self.decay == 1.0:
            return torch.ones(queries, device=device)
        age = torch.arange(queries - 1, -1, -1, device=device, dtype=torch.float32)
        return (self.decay**age).masked_fill_(age >= self._rows(queries), 0.0)

    def _rows(self, queries: int) -> int:
        return min(queries, math.ceil(math.log(NEGLIGIBLE) / math.log(self.decay)))
