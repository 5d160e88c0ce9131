"""exactmerge: keep a core, merge the rest into residual slots, and check the result against real queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities, Selector, Victims
from kvlab.core.contract.plan import Plan, ValueShift
from kvlab.core.contract.view import View
from kvlab.core.methods.scorers.lookahead.sampled_queries import FutureQueries
from kvlab.core.methods.settlers.edges import gather
from kvlab.core.methods.settlers.residuals.exact_decode import settle_while_decoding
from kvlab.core.methods.settlers.residuals.observed_queries import Grouping, Observed, Trial, nearest_pivot

SINKS = 4
TINY = 1e-9


@dataclass(frozen=True)
class ExactResidual:
    """Keep the highest scores, and merge victims into a share of the budget that each head chooses.

    For each of `shares` the compression is simulated: of the victims, the best-scored (`score`) or evenly spaced ones
    (`spread`) become pivots, the others join the pivot with the most similar key, keys and values are averaged by the
    attention of the last `window` queries, and the log mass is exact over those queries. Residual values are then
    refitted by ridge regression on every second query, and each head takes the share whose outputs are closest to the
    truth on the other queries. A share of 0 is plain eviction, so a head merges only if merging helped. The chosen
    share is refitted on all queries of the window.
    """

    shares: tuple[float, ...] = (0.0, 0.1, 0.3)
    window: int = 32
    ridge: float = 0.1
    refit: bool = True
    margin: float = 0.0
    pivots: Literal["score", "spread"] = "score"
    future: FutureQueries | None = None
    future_weight: float = 0.5
    state: Mapping[str, float] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        """The logits of the window's queries are in memory; float32 copies were measured with the allocator."""
        return Capabilities(
            prompt_rows=self.prompt_rows, reads_logits=True, key_copies=7.0, merges=True, mass_of_votes=None
        )

    def prompt_rows(self, tokens: int) -> int:
        return self.window

    def settle(self, view: View, select: Selector) -> Plan:
        """Plan with the best share of each head."""
        if view.phase == "decode":
            most = max(1, round(max(self.shares) * view.largest_budget))
            return settle_while_decoding(view, select, self.window, most)
        observed = Observed.of(view, self.window)
        if self.future is not None:
            observed = observed.and_future(view, self.future, SINKS, self.future_weight)
        weight = observed.total_mass() + TINY
        errors = [self._error(view, select, observed, weight, self._reserved(view, share)) for share in self.shares]
        handicap = torch.tensor([share > 0 for share in self.shares], device=weight.device) * self.margin
        best = (torch.stack(errors, -1) * (1 + handicap)).argmin(-1)  # (B, H)
        reserved = torch.stack([self._reserved(view, share) for share in self.shares], -1)
        chosen = reserved.gather(-1, best[..., None])[..., 0]
        return self._plan(view, select, observed, weight, chosen)

    def _reserved(self, view: View, share: float) -> Tensor:
        """Residual slots (B, H); the newest token always has its own slot."""
        return (view.budget * share).round().long().minimum(view.budget - 1)

    def _error(self, view: View, select: Selector, observed: Observed, weight: Tensor, reserved: Tensor) -> Tensor:
        grouping, keep = self._group(view, select, reserved)
        trial, _ = grouping.trial(observed, keep, view.slots.values, weight)
        shift = trial.refit(observed, ~observed.held_back, self.ridge) if self.refit else None
        return trial.error(observed, observed.held_back, shift)

    def _group(self, view: View, select: Selector, reserved: Tensor) -> tuple[Grouping, Tensor]:
        """(grouping, kept slots) with `reserved` (B, H) residual slots."""
        slots, over = view.slots, view.excess() > 0
        must_go = torch.where(over, view.slots.live() - (view.budget - reserved), 0)
        most = view.most_excess + max(1, round(max(self.shares) * view.largest_budget))
        victims = select.victims(replace(view, budget=view.budget - reserved), must_go, most)
        count = victims.active.sum(-1, keepdim=True)  # (B, H, 1)
        width = max(1, min(round(max(self.shares) * view.largest_budget), victims.index.shape[-1]))
        place = torch.arange(width, device=count.device)
        exists = (place < reserved[..., None]) & (place < count)
        pivot = victims.index.gather(2, self._pivots(view, victims, count, reserved, place))
        chosen = torch.zeros_like(slots.valid).scatter(2, torch.where(exists, pivot, pivot[..., :1]), True)
        chosen &= exists.any(-1, keepdim=True)
        leaves = victims.active & ~gather(chosen, victims.index)
        residual = nearest_pivot(view.slots.keys, victims.index, pivot, exists)
        grouping = Grouping(victims.index, leaves & (reserved > 0)[..., None], leaves, residual, pivot, exists)
        return grouping, victims.keep(view.slots.valid)

    def _pivots(self, view: View, victims: Victims, count: Tensor, reserved: Tensor, place: Tensor) -> Tensor:
        """Victims (B, H, R) that become pivots, as indices into a head's E victims (lowest score first)."""
        if self.pivots == "score":
            return (count - 1 - place).clamp_min(0)
        position = gather(view.slots.position, victims.index)
        position = position.masked_fill(~victims.active, torch.iinfo(position.dtype).max)
        by_position = position.argsort(stable=True, dim=-1)
        step = (place * count).div(reserved[..., None].clamp_min(1), rounding_mode="floor")
        middle = step + count.div(2 * reserved[..., None].clamp_min(1), rounding_mode="floor")
        return by_position.gather(2, middle.minimum(count - 1).clamp_min(0))

    def _plan(self, view: View, select: Selector, observed: Observed, weight: Tensor, reserved: Tensor) -> Plan:
        slots = view.slots
        grouping, keep = self._group(view, select, reserved)
        trial, log_mass = grouping.trial(observed, keep, slots.values, weight)
        stays = slots.valid & ~torch.zeros_like(slots.valid).scatter(2, grouping.source, grouping.leaves)
        edges = grouping.edges(view, weight, log_mass)
        return Plan(keep=stays, edges=edges, value_shift=self._shift(observed, trial, grouping))

    def _shift(self, observed: Observed, trial: Trial, grouping: Grouping) -> ValueShift | None:
        if not self.refit:
            return None
        amount = trial.refit(observed, torch.ones_like(observed.held_back), self.ridge)
        return ValueShift(grouping.pivot, amount * grouping.exists[..., None])
