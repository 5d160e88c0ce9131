"""Restore tokens or heads of any method, drop or merge tokens: what if they had lost nothing, or just these?"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kvlab.core.contract import Columns, Edges, InPlace, Pipeline, Plan, Selector, Victims, View, Wrapper, gather
from kvlab.core.errors import UserError
from kvlab.core.methods.settlers.edges import first_of, nearest_slot, sum_to_target
from kvlab.core.methods.wrappers.page_selector import SameLayers
from kvlab.core.restore import Restore


@dataclass(frozen=True)
class ChosenVictims(Wrapper):
    """The slots `chosen` (B, H, S), then as many of the inner selector's victims as are still in excess."""

    inner: Selector
    chosen: Tensor

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """All chosen slots, also where they are more than `excess` (B, H), and the inner selector's."""
        chosen = self.chosen & view.slots.valid
        count = chosen.sum(-1)
        index, active = first_of(chosen, int(count.max()))
        others = chosen if barred is None else chosen | barred
        rest = self.inner.victims(view, (excess - count).clamp_min(0), most, others)
        return Victims(torch.cat([index, rest.index], -1), torch.cat([active, rest.active], -1))


RETURNED = "returned"
ON_TOP = 1
PINNED = 2
EVICTS = 3
DROPPED = 4
MERGED = 5


def giving_back(pipeline: Pipeline, returned: Restore | None, layers: Sequence[int], room: int) -> Pipeline:
    """The pipeline with `returned` restored; for one cache only, as it keeps state.

    `layers`: compressed layers of the model; `room`: tokens that may be generated. With None nothing is restored, but
    the slot state is the same. Raises UserError if tokens are to be merged that the method merges in groups.
    """
    parts = {f.name: getattr(pipeline, f.name) for f in fields(Pipeline)}
    if returned is None or returned.kind == "read":  # the slots are the method's
        return GivingBack(**parts)
    if returned.kind == "merge":
        settle = pipeline.can.settle
        if settle.merges and not settle.by_selector:
            raise UserError("This method merges tokens in groups, so none can be merged by hand: keep or drop it.")
    marks = Marks(pipeline, returned, tuple(layers), room)
    return GivingBack(**parts | {"allocate": RoomOnTop(pipeline.allocate, marks)}, marks=marks)


@dataclass(frozen=True)
class GivingBack(Pipeline):
    """Plans as the method does, ignoring restored slots.

    The method plans as if slots beyond its budget did not exist, so that all other decisions are unchanged. A restored
    token that it would have kept anyway counts in its budget and is pinned.
    """

    marks: "Marks | None" = field(default=None, repr=False, compare=False)

    @property
    def state(self) -> dict[str, float]:
        """The method's slot state, and the restore marks."""
        return {**super().state, RETURNED: 0}

    @property
    def fills_budget(self) -> bool:
        """Heads exceed their budgets by different amounts if something is restored."""
        return self.marks is None and super().fills_budget

    @property
    def adds_votes(self) -> bool:
        """Whether tokens are merged by hand though the method does not merge."""
        return self.marks is not None and self.marks.returned.kind == "merge" and not self.can.settle.merges

    @property
    def columns(self) -> Columns:
        """The method's columns, with votes where tokens are merged by hand."""
        return replace(super().columns, votes=True, mass_of_votes=1.0) if self.adds_votes else super().columns

    @cached_property
    def in_place(self) -> InPlace | None:
        """The method's own; none where slots have votes that its kernel does not know."""
        make_kernel = self.can.settle.in_place
        return None if make_kernel is None or self.adds_votes else make_kernel(self.score, self.select)

    def plan(self, view: View) -> Plan:
        """The method's decision about all other slots."""
        if self.marks is None:
            return super().plan(view)
        prompt = view.phase == "prefill"
        marks = self.marks.by_layer[view.layer_idx] if prompt else view.slots.extra[RETURNED]
        hidden = (marks == ON_TOP) if prompt else (marks == ON_TOP) | (marks == PINNED)
        # without the hidden slots and their places in the budget
        there = hidden & view.slots.valid
        left = replace(view.slots, valid=view.slots.valid & ~there)
        method_view = replace(view, slots=left, budget=(view.budget - there.sum(-1)).clamp_min(1))
        kind = self.marks.returned.kind if prompt else None
        if kind == "drop":
            plan = self._plan_without(method_view, (marks == DROPPED) & view.slots.valid)
        elif kind == "merge":
            plan = self._plan_merging(method_view, (marks == MERGED) & view.slots.valid)
        else:
            plan = super().plan(method_view)
        evicts = (marks == EVICTS).any(-1)
        # The plan's merges without those of heads in `evicts` (B, H), whose sources are evicted instead.
        found: dict[str, Any] = {}
        if plan.edges is not None:
            found["edges"] = replace(plan.edges, active=plan.edges.active & ~evicts[..., None])
        if plan.value_shift is not None:
            amount = plan.value_shift.amount.masked_fill(evicts[..., None, None], 0.0)
            found["value_shift"] = replace(plan.value_shift, amount=amount)
        plan = replace(plan, keep=plan.keep | there, **found)
        return replace(plan, extra=(plan.extra or {}) | {RETURNED: marks}) if prompt else plan

    def _plan_without(self, view: View, dropped: Tensor) -> Plan:
        """The method's plan as if the slots in `dropped` (B, H, S) did not exist; its budget stays."""
        view = replace(view, slots=replace(view.slots, valid=view.slots.valid & ~dropped))
        excess = max(int((view.slots.live() - view.budget).max()), 0)
        plan = super().plan(replace(view, most_excess=excess)) if excess else Plan(view.slots.valid)
        lost = None if plan.lost is None else plan.lost + (view.slots.votes * dropped).sum(-1)
        return replace(plan, lost=lost)

    def _plan_merging(self, view: View, chosen: Tensor) -> Plan:
        """The method's plan with the slots in `chosen` (B, H, S) among its victims, merged if it evicts victims."""
        if self.can.settle.merges:
            return self.settle.settle(view, ChosenVictims(self.select, chosen))
        plan = replace(self._plan_without(view, chosen), lost=None)
        slots = view.slots
        most = int(chosen.sum(-1).max())
        if most == 0:
            return replace(plan, edges=None)
        # Into the slot with the most similar key (cosine): KeepKV's target, without its threshold, and the weights of
        # equal logits. Keys and values become means weighted by votes, and votes add up. The target's score stays.
        source, active = first_of(chosen, most)
        cosine, target = nearest_slot(slots, source, plan.keep, view.never())
        active = active & torch.isfinite(cosine)
        target = torch.where(active, target, source)
        votes_of_source, votes_of_target = (gather(slots.votes, ends).float() for ends in (source, target))
        votes = votes_of_target + sum_to_target(votes_of_source, target, active, slots.valid.shape[-1])
        share = votes_of_source / votes
        target_weight = votes_of_target / votes
        edges = Edges(
            source=source,
            target=target,
            active=active,
            key_weight=share,
            value_weight=share,
            self_key_weight=target_weight,
            self_value_weight=target_weight,
            votes_after=votes,
            log_mass_after=None,
            score_after=None,
            similarity=cosine,
        )
        return replace(plan, edges=edges)


@dataclass(frozen=True)
class RoomOnTop(SameLayers):
    """An allocator's budgets plus one slot per restored token."""

    marks: "Marks"

    def head_budgets(self, view: View) -> Tensor:
        """The method's budgets (B, H) plus restored slots."""
        inner_budgets = self.inner.head_budgets(view)
        return self.marks.settle(view, view.budget if inner_budgets is None else inner_budgets.long())


@dataclass(eq=False, repr=False)
class Marks:
    """Restore marks of every layer, known once the prompt's budgets are.

    By layer (B, H, S) int16: `ON_TOP`, `PINNED`, `EVICTS`, `DROPPED`, `MERGED` or 0.
    """

    pipeline: Pipeline
    returned: Restore
    layers: tuple[int, ...]
    room: int
    by_layer: dict[int, Tensor] = field(default_factory=dict)

    def settle(self, view: View, budget: Tensor) -> Tensor:
        """Budgets (B, H) with room for restored slots; `budget` is the method's own."""
        heads = self.returned.heads
        layer = self.layers[view.layer_idx]
        affected = [heads is None or (layer, head) in heads for head in range(budget.shape[1])]
        meant = torch.tensor(affected, device=budget.device)
        marks = torch.zeros_like(view.slots.position, dtype=torch.int16)
        chosen = torch.tensor(self.returned.tokens, dtype=torch.int32, device=view.slots.position.device)
        wanted = torch.isin(view.slots.position, chosen) & view.slots.valid  # the slots of the chosen tokens
        if self.returned.kind in ("tokens", "apart"):
            # The method's own plan.
            excess = max(int((view.slots.live() - budget).max()), 0)
            method_view = replace(view, budget=budget, largest_budget=int(budget.max()), most_excess=excess)
            before = None if view.generator is None else view.generator.get_state()
            plan = self.pipeline.plan(method_view) if excess else Plan(view.slots.valid)
            if before is not None and view.generator is not None:
                view.generator.set_state(before)
            edges = plan.edges
            nothing = torch.zeros_like(view.slots.valid)
            if self.returned.kind == "apart":
                merged = nothing if edges is None else _at(nothing, edges.source, edges.active)
                marks = merged.short() * ON_TOP
            else:
                taking = nothing if edges is None else _at(nothing, edges.target, edges.active)
                alone = plan.keep & ~taking
                marks = torch.where(wanted, torch.where(alone, PINNED, ON_TOP), 0).short()
            marks = marks * meant[:, None]
        elif self.returned.kind == "evict":
            marks = (marks + EVICTS) * meant[:, None]
        elif self.returned.kind in ("drop", "merge"):
            wanted = wanted & meant[:, None]
            marks = wanted.short() * (DROPPED if self.returned.kind == "drop" else MERGED)
            budget = torch.minimum(budget, view.slots.live() - wanted.sum(-1))
        else:
            everything = (view.tokens_seen + self.room)[:, None]
            budget = torch.where(meant, torch.maximum(budget, everything), budget)
        self.by_layer[view.layer_idx] = marks
        return budget + (marks == ON_TOP).sum(-1)


def _at(nothing: Tensor, index: Tensor, active: Tensor) -> Tensor:
    """Mask (B, H, S) of the slots in active entries of `index` (B, H, E)."""
    return nothing.short().scatter_add(2, index, active.short()) > 0
