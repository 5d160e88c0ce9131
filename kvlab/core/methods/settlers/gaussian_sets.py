"""KVMerger: merge sets of consecutive similar keys by a Gaussian mean around the most attended key."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kvlab.core.contract import Capabilities, Edges, Evict, Plan, Selector, View, gather, protected_slots, uniform_draws
from kvlab.core.methods.settlers.consecutive import Sets, find_sets, nearness
from kvlab.core.methods.settlers.edges import max_to_target, sum_to_target
from kvlab.core.methods.settlers.log_mass import AS_PUBLISHED, Mass, Parts, Space, rotate_sources, turns

SigmaMode = Literal["mean_l2", "mean", "paper"]
Pivot = Literal["attention", "random"]
AnyPivot = Pivot | Literal["anchor"]
Weights = Literal["gaussian", "average"]
FLOOR = 1e-6


@dataclass(frozen=True)
class GaussianSets:
    """Merge consecutive sets (KVMerger, Algorithms 1 and 2, equations 5 to 8).

    Slots protected by the selector, and the share `heavy` of the budget with the highest scores, are kept. All others
    are scanned from last to first into sets (see `consecutive`); the slot of a set with the highest score is its pivot
    p, and merged keys and values are means with weights exp(-|k_p - k_i|^2 / (2 sigma^2)), normalized. `sigma` is the
    mean of |k_p - k_i| over the others (`mean`, section 6.3), that over the square root of 2 (`mean_l2`), the mean of
    its squares over the square root of 2 (`paper`: equation 7 as printed), or a number. `theta` None: each head takes
    the largest grid threshold, down to `loosest`, that meets its budget. If there are still too many sets, those whose
    highest score is lowest are evicted. In `space` unrotated the distances are those of re-rotated keys. Decoding (if
    the method decides then) evicts what is over budget. A head within its budget is unchanged. The paper's ablations: a
    random `pivot` (Table 3), equal `weights` (Table 4).
    """

    needs_protection: ClassVar[bool] = True

    theta: float | None = None
    loosest: float = 0.75
    heavy: float = 0.24
    sigma: SigmaMode | float = "mean_l2"
    longest_set: int = 64
    mass: Mass = AS_PUBLISHED
    space: Space = "rotated"
    pivot: AnyPivot = "attention"
    weights: Weights = "gaussian"
    state: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def capabilities(self) -> Capabilities:
        """Settling a prompt stores the similarity of each slot to those before it, twice."""
        return Capabilities(merges=True, mass_of_votes=self.mass.of_votes)

    def settle(self, view: View, select: Selector) -> Plan:
        """Merge sets at prefill, evict while decoding."""
        if view.phase == "decode":
            return Evict().settle(view, select)
        over = view.excess()[..., None] > 0
        # Recent and high-score slots, with at least one place of the budget left to sets.
        room = (view.budget - 1).clamp_min(1)
        safe = protected_slots(select, replace(view, budget=room)) & view.slots.valid
        count = torch.minimum((view.budget * self.heavy).long(), room - safe.sum(-1)).clamp_min(0)
        score = torch.nan_to_num(view.slots.score).masked_fill(safe | ~view.slots.valid, -torch.inf)
        rank = score.argsort(dim=-1, descending=True, stable=True).argsort(-1)
        protected = (safe | (rank < count[..., None])) & view.slots.valid
        order = view.slots.position.masked_fill(~view.slots.valid, -1).argsort(dim=-1, stable=True)
        may_merge = gather(view.slots.valid & ~protected & over, order)
        places = (view.budget - protected.sum(-1)).clamp_min(0)
        sets = self.sets(view, order, may_merge, places)
        score = torch.nan_to_num(gather(view.slots.score, order))
        leader = _highest(score, sets, may_merge)
        # Of the sets beyond the budget those leave whose highest score is lowest.
        beyond = (sets.is_anchor.sum(-1) - places).clamp_min(0)
        of_set = gather(score, leader).masked_fill(~sets.is_anchor, torch.inf)
        rank = of_set.argsort(dim=-1, stable=True).argsort(-1)
        lost = gather((rank < beyond[..., None]) & sets.is_anchor, sets.anchor) & may_merge
        # Evicted sets do not depend on the pivot rule, so that the ablation changes nothing else.
        if self.pivot == "anchor":
            pivot = sets.anchor
        elif self.pivot == "attention":
            pivot = leader
        else:
            # drawn for each token from the run's seed
            seed = 0 if view.generator is None else view.generator.initial_seed()
            pivot = _highest(uniform_draws(seed, gather(view.slots.position, order)), sets, may_merge)
        place = torch.arange(pivot.shape[-1], device=pivot.device)
        active = may_merge & ~lost & (pivot != place)
        edges = self._edges(view, order, order.gather(2, pivot), active)
        leaves = torch.zeros_like(may_merge).scatter(2, order, active | lost)
        return Plan(keep=view.slots.valid & ~leaves, edges=edges)

    def sets(self, view: View, order: Tensor, may_merge: Tensor, places: Tensor) -> Sets:
        """Sets of the slots in `order` (B, H, S), at most `places` (B, H)."""
        near = nearness(gather(view.slots.keys, order), gather(view.slots.position, order), may_merge, self.longest_set)
        return find_sets(near, may_merge, places, self.theta, self.loosest)

    def _edges(self, view: View, source: Tensor, target: Tensor, active: Tensor) -> Edges:
        slots = view.slots
        width = view.slots.valid.shape[-1]
        turn = turns(view, source, target, self.space)
        distance = (rotate_sources(view, source, turn) - gather(slots.keys, target).float()).norm(dim=-1)
        # Kernel (B, H, E) of each source with its pivot (the pivot's own is 1); all 1 for a plain mean.
        kernel = torch.ones_like(distance)
        if self.weights != "average":
            others = sum_to_target(torch.ones_like(distance), target, active, width).clamp_min(1)
            if self.sigma in ("mean", "mean_l2"):
                sigma = sum_to_target(distance, target, active, width) / others
                sigma = sigma / math.sqrt(2) if self.sigma == "mean_l2" else sigma
            elif self.sigma == "paper":
                sigma = sum_to_target(distance.square(), target, active, width) / (others + 1) / math.sqrt(2)
            else:
                sigma = torch.full_like(distance, float(self.sigma))
            norm = gather(slots.keys, target).float().norm(dim=-1)
            sigma = sigma.maximum(FLOOR * norm).clamp_min(torch.finfo(torch.float32).tiny ** 0.5)
            kernel = (-(distance / sigma).square() / 2).exp()
        target_weight = 1 / (1 + sum_to_target(kernel, target, active, width))
        votes = gather(slots.votes, target) + sum_to_target(gather(slots.votes, source), target, active, width)
        parts = Parts(source, target, active, kernel * target_weight, target_weight, turn)
        return parts.edges(votes, self.mass.after(view, parts, votes), gather(slots.score, target))


def _highest(value: Tensor, sets: Sets, may_merge: Tensor) -> Tensor:
    """Sorted place (B, H, S) of the highest value in each slot's set, the first on ties."""
    width = value.shape[-1]
    place = torch.arange(width, device=value.device).expand_as(sets.anchor)
    best = may_merge & (value == max_to_target(value, sets.anchor, may_merge, width))
    room = torch.full_like(sets.anchor, width)
    first = room.scatter_reduce(2, sets.anchor, torch.where(best, place, width), "amin").gather(2, sets.anchor)
    return torch.where(may_merge, first, place)
