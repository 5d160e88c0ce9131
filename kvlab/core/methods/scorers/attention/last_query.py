"""Attention of the newest query only, averaged over all heads of the layer (TOVA)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.view import Seen, Slots


@dataclass(frozen=True)
class LastQuery:
    """Score_j = mean over all heads of A[newest query, j]; with `heads="each"`, over those of one KV head."""

    heads: str = "shared"
    every_step: bool = True
    needs_hidden_states: bool = False
    state: Mapping[str, float] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        """Heads that keep the same tokens are scored together."""
        return Capabilities(across_heads=self._shared)

    @property
    def _shared(self) -> bool:
        return self.heads == "shared"

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32, independent of earlier queries."""
        mass = seen.last_mass()
        return {"score": mass.mean(1, keepdim=True).expand_as(mass).contiguous() if self._shared else mass}
