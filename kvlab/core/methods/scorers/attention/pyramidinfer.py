"""PyramidInfer: attention of recent queries with rising weights, averaged over all heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.view import Seen, Slots

ROWS = "recent_rows"


@dataclass(frozen=True)
class RecentRows:
    """Score_j = mean over the last R = 1 + int(recent * T) queries of weight_r A[r, j]; weights rise linearly from 1.

    T is the length of the text, even if a layer receives only part of it (prefill saving). The last query's weight is
    `distance_weight`. `heads="shared"` averages over all heads, so that every head keeps the same tokens (the paper);
    `each` averages over the query heads of a KV head. The published code keeps an R x S attention map to slide this
    mean while decoding; here (`decode`) it is a running mean with one number per slot: a new query has weight 1/n, with
    n the queries that could see the slot, at most R.
    """

    recent: float = 0.2
    distance_weight: float = 1.2
    heads: Literal["shared", "each"] = "shared"
    decode: bool = True
    needs_hidden_states: bool = False

    @property
    def every_step(self) -> bool:
        """Only if decoding ranks too."""
        return self.decode

    @property
    def capabilities(self) -> Capabilities:
        """Heads that keep the same tokens are scored together."""
        return Capabilities(prompt_rows=self.prompt_rows, across_heads=self.decode and self.heads == "shared")

    @property
    def state(self) -> Mapping[str, float]:
        """Slot state: queries in the running mean."""
        return {ROWS: 0} if self.decode else {}

    def prompt_rows(self, tokens: int) -> int:
        """Number of the prompt's queries that vote."""
        return 1 + int(tokens * self.recent)

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32, and the number of queries in each slot's mean."""
        if not first and not self.decode:
            return {}
        if first:
            # Length of the text, even if only a part reached this layer: the newest token always does.
            text = slots.position[:, 0].masked_fill(~slots.valid[:, 0], -1).amax(-1) + 1
            rows = (1 + (text.double() * self.recent).long()).minimum(slots.valid[:, 0].sum(-1))  # (B,)
            score = self._over_heads(self._prompt_mass(slots, seen, rows))
            return {"score": score} | ({ROWS: rows[:, None, None].float().expand_as(score)} if self.decode else {})
        total = slots.position.masked_fill(~slots.valid, -1).amax((1, 2)) + 1  # (B,): real tokens so far
        rows, new = 1 + (total * self.recent).long(), seen.rows_seen()
        count = torch.minimum(slots.extra[ROWS] + new, rows[:, None, None])
        keep = (1 - new / count.clamp_min(1)).clamp_min(0)
        score = keep * slots.score + self._over_heads(seen.column_mass()) / count.clamp_min(1)
        return {"score": score, ROWS: count}

    def _prompt_mass(self, slots: Slots, seen: Seen, rows: Tensor) -> Tensor:
        """Weighted mean (B, H, S) over each prompt's own last rows; slot j belongs to query j."""
        most = int(rows.max())
        real = slots.valid[:, 0].long()
        age = (real.flip(-1).cumsum(-1).flip(-1) - real)[:, -most:]  # (B, most): real queries after each
        last = (rows - 1)[:, None]
        weight = 1 + (self.distance_weight - 1) * (last - age) / last.clamp_min(1)
        weight = weight.masked_fill((age > last) | ~slots.valid[:, 0, -most:], 0.0)
        return seen.column_mass(most, weight) / rows[:, None, None]

    def _over_heads(self, mass: Tensor) -> Tensor:
        return mass.mean(1, keepdim=True).expand_as(mass) if self.heads == "shared" else mass
