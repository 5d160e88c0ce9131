"""Streams of similar length: their table, their part of the budget, and how a decision changes both."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.attention.pass_view import PassSeen
from kvlab.cache.buckets.layer_budget import Quota
from kvlab.cache.settings import LayerSettings
from kvlab.cache.table.slot_table import SlotTable
from kvlab.cache.table.snapshot import SetAside
from kvlab.methods.core.in_place import LEAVE_NO_TRACE
from kvlab.methods.core.inplace_work import Work
from kvlab.methods.core.plan import Plan
from kvlab.methods.core.view import Slots, View


@dataclass(frozen=True)
class Decision:
    """What was decided for one bucket; `before` is its table from just before, if somebody watches, until `adopt`."""

    view: View
    plan: Plan
    before: Slots
    after: Slots


class Bucket:
    """Part of a layer. There is one until the prompt is settled, and longer where all heads keep as much."""

    def __init__(self, table: SlotTable) -> None:
        self.table = table
        self.quota: Quota | None = None  # none before the prompt is complete
        self.started = False  # every row has been over budget before
        self.first: tuple[int, int, int] | None = None  # slots, tokens and the pass's end at the first decision
        self.dropped = torch.zeros(table.slots.keys.shape[:2], device=table.slots.keys.device)  # votes lost to eviction
        self.guard_activations = torch.zeros_like(self.dropped)
        self.last_work: tuple[tuple[object, ...], Work | None] = (), None  # what it was known by, made by `fused`

    @property
    def is_over(self) -> bool:
        """Whether some head may hold more than its budget."""
        return self.quota is not None and self.table.occupied > self.quota.smallest

    def attend(self, seen: PassSeen, every_step: bool) -> Tensor:
        """Output (N, W * G, q, d) of this pass; a method that needs each query's attention shares one pass with it."""
        values = self.table.states()[1]
        if seen.has_state:
            return seen.attend_with_state(values)
        if seen.num_new == 1 and (every_step or not seen.is_plain):
            return seen.attend_one(values)
        return seen.attend(values)

    def decide(self, view: View, settings: LayerSettings, check: Callable[[Plan], None]) -> Decision:
        """Plan, and change the table as planned if `check` does not object."""
        slots, table = view.slots, self.table
        plan = settings.pipeline.plan(view)
        check(plan)
        self.dropped += _votes_lost(slots, plan) if plan.lost is None else plan.lost
        if plan.guard_activations is not None:
            self.guard_activations += plan.guard_activations
        before = SetAside.of(slots, plan) if settings.watched_closely else slots
        after = table.after(slots, plan, view.seen.rotary)
        table.weighted = table.weighted or plan.edges is not None or plan.log_mass is not None
        table.note_heads(plan.head_state or {})
        return Decision(view, plan, before, after)

    def known_by(self) -> tuple[object, ...]:
        """What all tensors that a decision in place reads and writes follow from, but the newest query's attention."""
        table = self.table
        return table.slots, table.width, self.quota and self.quota.slots, self.dropped, *table.head_state.values()

    def work_again(self) -> Work | None:
        """The last decision that was made in place, if the next one of its kind is made on the same tensors."""
        known, work = self.last_work
        return work if work is not None and all(map(operator.is_, self.known_by(), known)) else None

    def was_decided(self, work: Work) -> None:
        """Count a decision that was made in place, with every head over its budget before and at it now."""
        assert self.quota is not None
        self.table.occupied = min(self.table.occupied, self.quota.largest)
        self.table.is_dense, self.table.weighted = False, self.table.weighted or work.kind not in LEAVE_NO_TRACE
        if work.left is not None:
            self.table.was_freed(work.left, work.full)

    def adopt(self, after: Slots, lengths: list[int], bound: int | None = None) -> None:
        """Take over the table that a decision left; `lengths` are the tokens each stream has seen.

        No head has more than `bound` valid slots, or its budget where that is None.
        """
        assert self.quota is not None
        self.table.adopt(after, self.quota.largest if bound is None else bound)
        self.started = self.quota.was_exceeded(lengths)

    def part(self, table: SlotTable, take: Callable[[Tensor], Tensor]) -> Bucket:
        """Some of the streams, whose slots are in `table` already; `take` picks them from any (N, W, ...) tensor."""
        part = Bucket(table)
        part.table.head_state = {name: take(tensor) for name, tensor in self.table.head_state.items()}
        part.quota, part.started = self.quota and self.quota.part(take(self.quota.slots)), self.started
        part.first = self.first
        part.dropped, part.guard_activations = take(self.dropped), take(self.guard_activations)
        return part

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Keep, repeat or permute streams."""
        self.table.map_rows(change)
        self.dropped, self.guard_activations = change(self.dropped), change(self.guard_activations)
        if self.quota is not None:
            self.quota.map_rows(change(self.quota.slots))


def _votes_lost(slots: Slots, plan: Plan) -> Tensor:
    """(N, W) votes of the slots that leave without going into another one."""
    leaving = (slots.votes * (slots.valid & ~plan.keep)).sum(-1)
    if plan.edges is None:
        return leaving
    return leaving - (slots.votes.gather(2, plan.edges.source) * plan.edges.active).sum(-1)
