"""PyramidPool: windows of the oldest slots are pooled into one slot each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from kvlab.methods.pipeline import Selector
from kvlab.methods.plan import Edges, Plan, ValueShift
from kvlab.methods.settlers.groups import at, max_to_target, sum_to_target
from kvlab.methods.settlers.mass import AS_PUBLISHED, Mass, Parts, Space, turns
from kvlab.methods.settlers.windows import Windows, pool_windows
from kvlab.methods.view import View

Pooling = Literal["mean", "max", "max-norm", "best"]
GENERATION = "generation"
ROUNDING = 1e-6  # relative, of a length in float32


@dataclass(frozen=True)
class Pool:
    """Pooling of the oldest slots the selector does not protect, in windows of `window` (PyramidPool, section 3.2).

    Once a head is over budget its oldest windows are pooled until `window` slots of the budget are free again, so that
    it is not done at every step. Slots already pooled are pooled again; `generation` counts how often.

    - `mean`: keys and values averaged, each slot counting for its votes (`weighted`), or as one whatever it stands for
      (the paper's mean of means). The window's middle slot lends its position.
    - `max`: element-wise maximum of keys and of values, at the middle slot's position. For rotated keys that has no
      meaning of its own; it is what a pooling layer does.
    - `max-norm`, `best`: the slot with the longest key, or with the highest score, stays as it is and the others of its
      window are evicted: no merging, so the votes of the others are dropped.

    One slot of the budget is kept for pools; a budget of a single slot evicts.
    """

    pooling: Pooling = "mean"
    window: int = 4
    weighted: bool = True
    mass: Mass = AS_PUBLISHED
    space: Space = "rotated"

    @property
    def state(self) -> Mapping[str, float]:
        """Own slot state: how many times a slot was pooled."""
        return {GENERATION: 0.0}

    def settle(self, view: View, select: Selector) -> Plan:
        """Pools, or evictions inside windows."""
        slots, room = view.slots, (view.budget - 1).clamp_min(1)
        safe = select.protected(replace(view, budget=room)) & slots.valid  # type: ignore[attr-defined]
        places = (view.budget - safe.sum(-1)).clamp_min(0)
        free = slots.valid & ~safe
        aim = torch.minimum((places - self.window).clamp_min(1), places)
        need = torch.where(view.excess() > 0, free.sum(-1) - aim, 0).clamp_min(0)
        # Every window pooled frees window - 1 slots, and a head needs at most its excess and the window's worth ahead.
        windows = -(-(view.most_excess + self.window) // (self.window - 1))
        width = min(windows * self.window, slots.valid.shape[-1])
        order = slots.position.masked_fill(~free, torch.iinfo(slots.position.dtype).max)
        index = order.topk(width, dim=-1, largest=False).indices
        exists = at(free, index)
        pools = pool_windows(exists, torch.where(places > 0, need, 0), self.window)
        evicted = exists & ((places == 0) & (need > 0))[..., None]
        return self._plan(view, index, exists & ~evicted, evicted, pools)

    def _plan(self, view: View, index: Tensor, exists: Tensor, evicted: Tensor, pools: Windows) -> Plan:
        width = index.shape[-1]
        rank = torch.arange(width, device=index.device)
        stays = self._stays(view, index, exists, pools)  # rank of the slot each one ends in
        leaves = exists & (stays != rank)
        passes = pools.passes + at(view.slots.extra[GENERATION], index)
        generation = max_to_target(passes, stays, exists, width)
        extra = view.slots.extra[GENERATION].scatter(2, index, torch.where(exists, generation, passes))
        gone = torch.zeros_like(view.slots.valid).scatter(2, index, leaves | evicted)
        plan = Plan(keep=view.slots.valid & ~gone, extra={GENERATION: extra})
        if self.pooling in ("best", "max-norm"):
            return plan
        edges = self._edges(view, index, index.gather(2, stays), leaves, pools.plain_weight)
        if self.pooling == "mean":
            return replace(plan, edges=edges)
        return self._maximum(view, index, stays, exists, leaves, replace(plan, edges=edges))

    def _stays(self, view: View, index: Tensor, exists: Tensor, pools: Windows) -> Tensor:
        """(B, H, E) rank of the slot that represents each slot's group."""
        width = index.shape[-1]
        rank = torch.arange(width, device=index.device).expand_as(index)
        if self.pooling in ("mean", "max"):
            first = -max_to_target(-rank.float(), pools.group, exists, width)
            last = max_to_target(rank.float(), pools.group, exists, width)
            middle = ((first + last) / 2).floor()
            return torch.where(exists, middle.nan_to_num().long(), rank)
        keys = view.slots.keys
        value = at(view.slots.score, index) if self.pooling == "best" else at(keys, index).float().norm(dim=-1)
        value = torch.nan_to_num(value)
        # Models that normalise keys make all of them as long: rounding must not choose among them, so the oldest stays.
        slack = 0.0 if self.pooling == "best" else max(ROUNDING, torch.finfo(keys.dtype).eps / 8)
        best = exists & (value >= max_to_target(value, pools.group, exists, width) * (1 - slack))
        chosen = -max_to_target(-rank.float(), pools.group, best, width)
        return torch.where(exists, chosen.nan_to_num(posinf=0, neginf=0).long(), rank)

    def _edges(self, view: View, source: Tensor, target: Tensor, active: Tensor, plain: Tensor) -> Edges:
        slots, width = view.slots, view.slots.valid.shape[-1]
        votes, own_votes = at(slots.votes, source), at(slots.votes, target)
        total = own_votes + sum_to_target(votes, target, active, width)
        if self.pooling == "max":
            weight = own = torch.zeros_like(total)
        elif self.weighted:
            weight, own = votes / total, own_votes / total
        else:
            weight, own = plain, 1 - sum_to_target(plain, target, active, width)
        parts = Parts(source, target, active, weight, own, turns(view, source, target, self.space))
        score = torch.maximum(at(slots.score, target), max_to_target(at(slots.score, source), target, active, width))
        return Edges(
            source=source,
            target=target,
            active=active,
            key_weight=weight,
            value_weight=weight,
            self_key_weight=own,
            self_value_weight=own,
            votes_after=total,
            log_mass_after=self.mass.after(view, parts, total),
            score_after=score,
            similarity=None,
            turn=parts.turn,
            kind="pool",
        )

    def _maximum(self, view: View, index: Tensor, stays: Tensor, exists: Tensor, leaves: Tensor, plan: Plan) -> Plan:
        """The same plan with element-wise maxima in place of weighted sums."""
        assert plan.edges is not None
        rank = torch.arange(index.shape[-1], device=index.device)
        pooled = exists & (stays == rank) & (max_to_target(leaves.float(), stays, exists, index.shape[-1]) > 0)
        keys = _maximum_of_group(at(view.slots.keys, index).float(), stays, exists)
        values = _maximum_of_group(at(view.slots.values, index).float(), stays, exists)
        amount = torch.where(pooled[..., None], values, 0.0)
        return replace(plan, edges=replace(plan.edges, key_shift=keys), value_shift=ValueShift(index, amount))


def _maximum_of_group(states: Tensor, stays: Tensor, exists: Tensor) -> Tensor:
    """(B, H, E, d): for each slot the element-wise maximum over all that end in the same slot; 0 where nothing is."""
    index = stays[..., None].expand_as(states)
    room = torch.full_like(states, -torch.inf)
    most = room.scatter_reduce(2, index, states.masked_fill(~exists[..., None], -torch.inf), "amax").gather(2, index)
    return torch.nan_to_num(most, neginf=0.0)
