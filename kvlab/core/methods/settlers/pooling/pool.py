"""PyramidPool: pool windows of the oldest slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvlab.core.contract.parts import Capabilities, Selector, protected_slots
from kvlab.core.contract.plan import Edges, Plan, ValueShift
from kvlab.core.contract.view import View
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.edges import gather, max_to_target, sum_to_target
from kvlab.core.methods.settlers.log_mass import AS_PUBLISHED, Mass, Parts, Space, turns
from kvlab.core.methods.settlers.pooling.grades import Windows, join_pairs, pool_windows

Pooling = Literal["mean", "max", "max-norm", "best"]
Repool = Literal["graded", "literal"]
GENERATION = "generation"
COVERS = "covers"
ROUNDING = 1e-6  # relative, of a length in float32


@dataclass(frozen=True)
class Pool:
    """Pool the oldest unprotected slots in windows of `window` (PyramidPool, section 3.2).

    Pooled slots are pooled again; `generation` counts how often. While decoding, `literal` pools the oldest windows
    until `window` slots of the budget are free; since the oldest are always the pools themselves, they end in one or
    two. `graded` joins two neighbours per excess slot, those with the fewest tokens for their age (see `graded`), so
    that older text becomes coarser. A prompt is always pooled in windows.

    - `mean`: average keys and values, each slot weighted by its votes (`weighted`) or equally (the paper's mean of
      means). The position is that of the slot with the window's middle token.
    - `max`: element-wise maximum of keys and of values, at the same position. For rotated keys this has no meaning of
      its own; it is what a pooling layer does.
    - `max-norm`, `best`: keep the slot with the longest key, or with the highest score, and evict the others of its
      window: no merging, so their votes are dropped; `covers` counts the tokens it represents.

    One slot of the budget is reserved for pools; a budget of a single slot evicts.
    """

    pooling: Pooling = "mean"
    window: int = 4
    weighted: bool = True
    mass: Mass = AS_PUBLISHED
    space: Space = "rotated"
    repool: Repool = "graded"

    @property
    def keeps_one(self) -> bool:
        """Whether a pool is one of its tokens."""
        return self.pooling in ("best", "max-norm")

    @property
    def state(self) -> Mapping[str, float]:
        """Slot state: how often a slot was pooled, and the tokens it covers if votes do not say."""
        return {GENERATION: 0} | ({COVERS: 1} if self.keeps_one else {})

    @property
    def capabilities(self) -> Capabilities:
        """If a pool is one of its tokens, the others are evicted and nothing merges."""
        return Capabilities(merges=not self.keeps_one, mass_of_votes=self.mass.of_votes, changes_many=True)

    def settle(self, view: View, select: Selector) -> Plan:
        """Pool, or evict within windows."""
        slots = view.slots
        safe = protected_slots(select, replace(view, budget=self.room(view)))
        if self.joins_one(view, select):
            return self._decode_step(view, slots.valid > safe)
        safe = safe & slots.valid
        places = (view.budget - safe.sum(-1)).clamp_min(0)
        free = slots.valid & ~safe
        graded = self.repool == "graded"
        aim = places if graded else torch.minimum((places - self.window).clamp_min(1), places)
        need = torch.where(view.excess() > 0, free.sum(-1) - aim, 0).clamp_min(0)
        if graded and view.phase == "decode":
            one = view.most_excess == 1 and free.shape[-1] > 1
            find = self._pair if one else self._pairs
            index, exists, pools = find(view, free, torch.where(places > 0, need, 0))
        else:
            index, exists, pools = self._oldest(view, free, torch.where(places > 0, need, 0))
        evicted = exists & ((places == 0) & (need > 0))[..., None]
        return self._plan(view, index, exists & ~evicted, evicted, pools)

    def room(self, view: View) -> Tensor:
        """Slots (B, H) of the budget that the selector may protect: one is reserved for pools."""
        return view.of_budget(self, lambda: (view.budget - 1).clamp_min(1))

    def joins_one(self, view: View, select: Selector) -> bool:
        """Whether each head exceeds its budget by at most one and has two unprotected slots."""
        one = self.repool == "graded" and view.phase == "decode" and view.most_excess == 1
        return one and self.keeps_one and view.smallest_budget > 1 and isinstance(select, LowestScore)

    def _decode_step(self, view: View, free: Tensor) -> Plan:
        """`_pair` and its plan in fewer operations, if one of the two slots is kept as it is.

        With budget B at most B - 1 slots are protected, so a head with B + 1 slots has two others.
        """
        slots, kind = view.slots, view.slots.position.dtype
        never = view.of_budget(("late", kind), lambda: view.budget.new_full((), torch.iinfo(kind).max, dtype=kind))
        position, order = _in_order(torch.where(free, slots.position, never))
        size = gather(self._size(view), order)
        # Inverted cost; missing slots count as younger than any token, so they are chosen last.
        worth = (view.tokens_seen[:, None, None].to(kind) - position[..., 1:]) / (size[..., :-1] + size[..., 1:])
        first = worth.argmax(-1, keepdim=True)
        pair = gather(order, torch.cat([first, first + 1], -1))
        value, slack = self._value(view, pair)
        short = (slots.live() > view.budget)[..., None]
        younger = value[..., :1] < value[..., 1:] * (1 - slack)  # the older one stays on ties
        target, source = torch.where(younger, pair.flip(-1), pair).chunk(2, -1)
        keep = slots.valid.scatter(2, source, gather(slots.valid, source) > short)
        count, passes = gather(slots.extra[COVERS], pair), gather(slots.extra[GENERATION], pair)
        covers = torch.where(short, count[..., :1] + count[..., 1:], gather(slots.extra[COVERS], target))
        generation = torch.where(short, passes.amax(-1, keepdim=True) + 1, gather(slots.extra[GENERATION], target))
        extra = {COVERS: covers, GENERATION: generation}
        own = {name: _put(slots.extra[name], target, value) for name, value in extra.items()}
        return Plan(keep=keep, extra=own, lost=short[..., 0])

    def _oldest(self, view: View, free: Tensor, need: Tensor) -> tuple[Tensor, Tensor, Windows]:
        """(slots by age (B, H, E), mask of existing ones, their groups): the oldest in windows."""
        # A pooled window frees window - 1 slots; a head needs at most its excess plus one window ahead.
        windows = -(-(view.most_excess + self.window) // (self.window - 1))
        index = _by_age(view, free, min(windows * self.window, free.shape[-1]))
        exists = gather(free, index)
        return index, exists, pool_windows(exists, need, self.window)

    def _pair(self, view: View, free: Tensor, need: Tensor) -> tuple[Tensor, Tensor, Windows]:
        """`_pairs` if no head needs (B, H) more than one: the cheapest two neighbours, or the two oldest slots."""
        never = torch.iinfo(view.slots.position.dtype).max
        position, order = view.slots.position.masked_fill(~free, never).sort(dim=-1)
        size, exists = gather(self._size(view), order), position < never
        age = (view.tokens_seen[:, None, None] - position[..., 1:]).clamp_min(1)
        cost = ((size[..., :-1] + size[..., 1:]) / age).masked_fill(~exists[..., 1:], torch.inf)
        short = (need > 0)[..., None]
        first = torch.where(short, cost.argmin(-1, keepdim=True), 0)
        rank = torch.arange(2, device=order.device)
        both = first + rank
        joined = short.expand(both.shape)
        pools = Windows(torch.where(joined, 0, rank), joined.float(), 1 - joined / 2)
        return gather(order, both), gather(exists, both), pools

    def _size(self, view: View) -> Tensor:
        """Tokens (B, H, S) a slot covers."""
        return view.slots.extra[COVERS] if self.keeps_one else view.slots.votes

    def _pairs(self, view: View, free: Tensor, need: Tensor) -> tuple[Tensor, Tensor, Windows]:
        """As `_oldest` with neighbours joined, reduced to slots that are pooled or evicted."""
        slots = view.slots
        order = _by_age(view, free, free.shape[-1])
        exists = gather(free, order)
        size = gather(self._size(view), order)
        age = view.tokens_seen[:, None, None] - gather(slots.position, order)
        pools = join_pairs(exists, size, age, need, view.most_excess)
        meant = exists & ((pools.passes > 0) | (need == 0)[..., None])
        rank = torch.arange(order.shape[-1], device=order.device)
        width = min(2 * view.most_excess, order.shape[-1])
        few = torch.where(meant, rank, order.shape[-1]).topk(width, dim=-1, largest=False, sorted=True).indices
        group = gather(pools.group, few)
        place = (group[..., 1:] != group[..., :-1]).cumsum(-1)
        narrow = Windows(pad(place, (1, 0)), gather(pools.passes, few), gather(pools.plain_weight, few))
        return gather(order, few), gather(meant, few), narrow

    def _plan(self, view: View, index: Tensor, exists: Tensor, evicted: Tensor, pools: Windows) -> Plan:
        width = index.shape[-1]
        rank = torch.arange(width, device=index.device)
        stays = self._representative(view, index, exists, pools)  # rank of the slot that each one ends in
        leaves = exists & (stays != rank)
        removed = leaves | evicted
        removed_slots = torch.zeros_like(view.slots.valid).scatter(2, index, removed)
        plan = Plan(keep=view.slots.valid & ~removed_slots, extra=self._extra(view, index, exists, stays, pools))
        if self.keeps_one:
            return replace(plan, lost=removed.sum(-1))
        edges = self._edges(view, index, index.gather(2, stays), leaves, pools.plain_weight)
        if self.pooling == "mean":
            return replace(plan, edges=edges)
        return self._maximum(view, index, stays, exists, leaves, replace(plan, edges=edges))

    def _extra(self, view: View, index: Tensor, exists: Tensor, stays: Tensor, pools: Windows) -> dict[str, Tensor]:
        """Slot state after pooling."""
        extra, width = view.slots.extra, index.shape[-1]
        passes = pools.passes + gather(extra[GENERATION], index)
        generation = max_to_target(passes, stays, exists, width)
        own = {GENERATION: _put(extra[GENERATION], index, torch.where(exists, generation, passes))}
        if not self.keeps_one:
            return own
        before = gather(extra[COVERS], index)
        covers = sum_to_target(before, stays, exists, width)
        return own | {COVERS: _put(extra[COVERS], index, torch.where(exists, covers, before))}

    def _representative(self, view: View, index: Tensor, exists: Tensor, pools: Windows) -> Tensor:
        """Rank (B, H, E) of the slot that represents each slot's group."""
        width = index.shape[-1]
        rank = torch.arange(width, device=index.device).expand_as(index)
        if not self.keeps_one:
            votes = torch.where(exists, gather(view.slots.votes, index), 0.0)
            until = votes.cumsum(-1)
            start = -max_to_target(votes - until, pools.group, exists, width)
            half = until - start >= sum_to_target(votes, pools.group, exists, width) / 2
            middle = -max_to_target(-rank.float(), pools.group, exists & half, width)
            return torch.where(exists, middle.nan_to_num(posinf=0).long(), rank)
        value, slack = self._value(view, index)
        best = exists & (value >= max_to_target(value, pools.group, exists, width) * (1 - slack))
        chosen = -max_to_target(-rank.float(), pools.group, best, width)
        return torch.where(exists, chosen.nan_to_num(posinf=0, neginf=0).long(), rank)

    def _value(self, view: View, index: Tensor) -> tuple[Tensor, float]:
        """(values by which the slots `index` (B, H, E) are chosen, relative tolerance for ties).

        Models that normalize keys make all lengths equal: rounding must not choose among them.
        """
        keys = view.slots.keys
        if self.pooling == "best":
            return gather(view.slots.score, index).nan_to_num(), 0.0
        return gather(keys, index).float().norm(dim=-1).nan_to_num(), max(ROUNDING, torch.finfo(keys.dtype).eps / 8)

    def _edges(self, view: View, source: Tensor, target: Tensor, active: Tensor, plain: Tensor) -> Edges:
        slots, width = view.slots, view.slots.valid.shape[-1]
        votes, own_votes = gather(slots.votes, source), gather(slots.votes, target)
        total = own_votes + sum_to_target(votes, target, active, width)
        if self.pooling == "max":
            weight = own = torch.zeros_like(total)
        elif self.weighted:
            weight, own = votes / total, own_votes / total
        else:
            weight, own = plain, 1 - sum_to_target(plain, target, active, width)
        parts = Parts(source, target, active, weight, own, turns(view, source, target, self.space))
        score = torch.maximum(
            gather(slots.score, target), max_to_target(gather(slots.score, source), target, active, width)
        )
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
        """Replace weighted sums in the plan by element-wise maxima."""
        assert plan.edges is not None
        rank = torch.arange(index.shape[-1], device=index.device)
        pooled = exists & (stays == rank) & (max_to_target(leaves.float(), stays, exists, index.shape[-1]) > 0)
        keys = _maximum_of_group(gather(view.slots.keys, index).float(), stays, exists)
        values = _maximum_of_group(gather(view.slots.values, index).float(), stays, exists)
        amount = torch.where(pooled[..., None], values, 0.0)
        return replace(plan, edges=replace(plan.edges, key_shift=keys), value_shift=ValueShift(index, amount))


def _in_order(position: Tensor) -> tuple[Tensor, Tensor]:
    """`position` (B, H, S) sorted, and the slots in that order."""
    return position.sort(dim=-1)


def _put(column: Tensor, index: Tensor, value: Tensor) -> Tensor:
    return column.scatter(2, index, value.to(column.dtype))


def _by_age(view: View, free: Tensor, count: int) -> Tensor:
    """The oldest slots (B, H, count) of those in `free`, oldest first."""
    position = view.slots.position
    order = position.masked_fill(~free, torch.iinfo(position.dtype).max)
    return order.topk(count, dim=-1, largest=False).indices


def _maximum_of_group(states: Tensor, stays: Tensor, exists: Tensor) -> Tensor:
    """Element-wise maximum (B, H, E, d) over all slots that end in the same slot; 0 if there are none."""
    index = stays[..., None].expand_as(states)
    room = torch.full_like(states, -torch.inf)
    most = room.scatter_reduce(2, index, states.masked_fill(~exists[..., None], -torch.inf), "amax").gather(2, index)
    return torch.nan_to_num(most, neginf=0.0)
