"""ZSMerge: what must go is averaged into a few residual slots that remember how many tokens they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from kvlab.methods.pipeline import Selector, Victims
from kvlab.methods.plan import Edges, Plan
from kvlab.methods.settlers.groups import Similarity, at, max_to_target, nearest, sum_to_target
from kvlab.methods.settlers.mass import Mass, MassRule, Parts, Space, turns
from kvlab.methods.view import View

RESIDUAL = "residual"


@dataclass(frozen=True)
class ResidualMerge:
    """Residual merging (ZSMerge eq. 5-7, and the authors' prefill).

    `share` of the budget (at least one slot) is residual. While a head has no residual slot (prefill, or the first time
    its cache is full), what must go is cut, in position order, into that many chunks (`chunk`, the authors' code), or
    grouped around the highest-scored of what must go (`similarity`). Later each leaving token joins the most similar
    residual slot. The mean is weighted by votes, and the log mass is alpha * log(votes) unless `mass` says otherwise.
    """

    share: float = 0.02
    alpha: float = 0.6
    similarity: Similarity = "dot"
    prefill: Literal["chunk", "similarity"] = "chunk"
    combine_score: Literal["max", "sum"] = "max"
    mass: MassRule = "alpha"
    space: Space = "rotated"

    @property
    def state(self) -> Mapping[str, float]:
        """Own slot state: 1 for a residual slot."""
        return {RESIDUAL: 0.0}

    def settle(self, view: View, select: Selector) -> Plan:
        """Merges for everything over budget."""
        slots = view.slots
        residual = (slots.extra[RESIDUAL] > 0) & slots.valid
        # A budget of one slot belongs to the newest token: such a head has no residual slot and evicts.
        allowed = (view.budget * self.share).round().long().clamp_min(1).minimum(view.budget - 1)
        live, room = slots.live(), view.budget - allowed
        must_go = torch.where(live > view.budget, live - residual.sum(-1) - room, 0).clamp_min(0)
        # Only the first time must room be made for the residual slots themselves.
        most = view.most_excess + (0 if view.started else self._most(view))
        victims = select.victims(replace(view, budget=room), must_go, most, barred=residual)
        merges = victims.active & (allowed > 0)[..., None]
        if view.started:  # every head that may have residual slots has them
            target = self._nearest_residual(view, victims.index, residual)
            keep = victims.keep(slots.valid)
            return Plan(keep=keep, edges=self._edges(view, victims.index, target, merges))
        return self._start(view, victims, allowed, merges, residual)

    def _most(self, view: View) -> int:
        """A host-side bound on the residual slots of any head."""
        return max(1, round(view.largest_budget * self.share))

    def _start(self, view: View, victims: Victims, allowed: Tensor, merges: Tensor, residual: Tensor) -> Plan:
        """The first merge of some heads at least, where residual slots are made."""
        slots = view.slots
        pivots = self._pivots(view, victims, allowed)
        start = ~residual.any(-1, keepdim=True)  # (B, H, 1): no residual slot yet
        near = nearest(at(slots.keys, victims.index), slots.keys, residual, self.similarity)[1]
        target = torch.where(start, pivots, near)
        active = merges & (target != victims.index)
        leaves = active | (victims.active & ~merges)
        return Plan(
            keep=slots.valid & ~torch.zeros_like(slots.valid).scatter(2, victims.index, leaves),
            edges=self._edges(view, victims.index, target, active),
            extra={RESIDUAL: (residual | (_flag(pivots, merges, residual) & start)).float()},
        )

    def _nearest_residual(self, view: View, source: Tensor, residual: Tensor) -> Tensor:
        """(B, H, E) the most similar residual slot of each source; just those few keys are looked at."""
        # One more than `_most`: it rounds on the host what the device rounds in float32.
        place = residual.float().topk(min(self._most(view) + 1, residual.shape[-1]), dim=-1).indices
        keys = view.slots.keys
        return place.gather(2, nearest(at(keys, source), at(keys, place), at(residual, place), self.similarity)[1])

    def _pivots(self, view: View, victims: Victims, allowed: Tensor) -> Tensor:
        """(B, H, E) slot each victim would start a residual from: its chunk's first, or the nearest high score."""
        allowed = allowed.clamp_min(1)
        count = victims.active.sum(-1, keepdim=True).clamp_min(1)
        if self.prefill == "similarity":
            rank = torch.arange(victims.index.shape[-1], device=count.device)
            chosen = (rank >= count - allowed[..., None]) & victims.active
            candidates = torch.zeros_like(view.slots.valid).scatter(2, victims.index, chosen)
            near = nearest(at(view.slots.keys, victims.index), view.slots.keys, candidates, self.similarity)[1]
            return torch.where(chosen | ~victims.active, victims.index, near)
        position = at(view.slots.position, victims.index).long().masked_fill(~victims.active, 2**40)
        order = position.argsort(-1)
        rank = order.argsort(-1)
        chunk = (rank * allowed[..., None]).div(count, rounding_mode="floor").minimum(allowed[..., None] - 1)
        first = (chunk * count).add(allowed[..., None] - 1).div(allowed[..., None], rounding_mode="floor")
        pivot = victims.index.gather(2, order.gather(2, first.clamp_max(order.shape[-1] - 1)))
        return torch.where(victims.active, pivot, victims.index)

    def _edges(self, view: View, source: Tensor, target: Tensor, active: Tensor) -> Edges:
        slots, width = view.slots, view.slots.valid.shape[-1]
        votes, own = at(slots.votes, source), at(slots.votes, target)
        total = own + sum_to_target(votes, target, active, width)
        score = at(slots.score, source)
        if self.combine_score == "max":
            score_after = torch.maximum(at(slots.score, target), max_to_target(score, target, active, width))
        else:
            score_after = at(slots.score, target) + sum_to_target(score, target, active, width)
        parts = Parts(source, target, active, votes / total, own / total, turns(view, source, target, self.space))
        return Edges(
            source=source,
            target=target,
            active=active,
            key_weight=parts.key_weight,
            value_weight=parts.key_weight,
            self_key_weight=parts.self_key_weight,
            self_value_weight=parts.self_key_weight,
            votes_after=total,
            log_mass_after=Mass(self.mass, self.alpha).after(view, parts, total),
            score_after=score_after,
            similarity=None,
            turn=parts.turn,
        )


def _flag(pivots: Tensor, active: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter(2, pivots, active)
