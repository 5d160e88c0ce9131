"""Attention accumulated over all queries, optionally decayed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.contract import AttentionPass, Capabilities, Slots

NEGLIGIBLE = 1e-6


@dataclass(frozen=True)
class AccumulatedAttention:
    """Score_j = sum over queries of decay^age * A[query, j], mean over the group (H2O: decay 1; ZSMerge: 0.98).

    With `decay` 0 the newest query alone counts. With `aggregate` "max" it is the largest of these terms over all
    queries and heads of the group instead.
    """

    decay: float = 1.0
    every_step: bool = True
    needs_hidden_states: bool = False
    state: Mapping[str, float] = field(default_factory=dict, hash=False)
    aggregate: Literal["mean", "max"] = "mean"

    @property
    def capabilities(self) -> Capabilities:
        """Sums can be updated in place."""
        return Capabilities(note=self.note, decay=self.decay) if self.aggregate == "mean" else Capabilities()

    def accumulate(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        return self.update(slots, layer_pass, False)

    def note(self, slots: Slots, layer_pass: AttentionPass) -> None:
        """The update after a single query, in place."""
        if self.decay != 1.0:
            slots.score.mul_(self.decay)
        slots.score.add_(layer_pass.last_mass())

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32; rows with weights below 1e-6 are skipped."""
        rows, weights, kept = layer_pass.num_new, None, slots.score
        if self.decay != 1.0:
            rows = self._rows(layer_pass.num_new)
            weights = self._row_weights(layer_pass.num_new, slots.score.device)[-rows:] if rows > 1 else None
            # Padding in front of a later turn is no query. Slots of this pass have no score to decay.
            kept = kept * self.decay ** (layer_pass.rows_seen() if layer_pass.num_new > 1 else 1)
        if self.aggregate == "max":
            return {"score": kept.maximum(layer_pass.column_max(rows, row_weight=weights))}
        return {"score": kept + layer_pass.column_mass(rows, weights)}

    @property
    def row_weights(self) -> Callable[[int, torch.device], Tensor] | None:
        """Weights (queries,) float32 of the sum: the decay by age, and 0 where that is below 1e-6."""
        return self._row_weights if self.aggregate == "mean" else None

    def _row_weights(self, queries: int, device: torch.device) -> Tensor:
        if self.decay == 1.0:
            return torch.ones(queries, device=device)
        age = torch.arange(queries - 1, -1, -1, device=device, dtype=torch.float32)
        return (self.decay**age).masked_fill_(age >= self._rows(queries), 0.0)

    def _rows(self, queries: int) -> int:
        return 1 if self.decay == 0 else min(queries, math.ceil(math.log(NEGLIGIBLE) / math.log(self.decay)))
