"""A score that looks at keys alone: no queries, no attention weights (KeyDiff)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from kvlab.methods.view import Seen, Slots


@dataclass(frozen=True)
class UnusualKeys:
    """Score = -cos(k, mean of the head's unit keys): keys that point elsewhere than most stay (KeyDiff)."""

    every_step: bool = False
    needs_hidden_states: bool = False
    state: Mapping[str, float] = field(default_factory=dict)
    key_copies: ClassVar = 4.2  # in float32, while a prompt is scored (counted with the allocator)

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32, against the mean of the slots held now."""
        units = normalize(slots.keys.float(), dim=-1) * slots.valid[..., None]
        mean = units.sum(2, keepdim=True) / slots.live()[..., None, None].clamp_min(1)
        return {"score": -cosine_similarity(units, mean, dim=-1)}
