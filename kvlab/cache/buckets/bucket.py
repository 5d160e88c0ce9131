"""A bucket: streams of similar length with their table, budget, and decisions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.attention.pass_view import PassSeen
from kvlab.cache.buckets.layer_budget import Quota
from kvlab.cache.settings import LayerSettings
from kvlab.cache.table.apply_plan import TableSnapshot
from kvlab.cache.table.slot_table import SlotTable
from kvlab.methods.core.in_place import LEAVE_NO_TRACE
from kvlab.methods.core.inplace_work import Work
from kvlab.methods.core.plan import Plan
from kvlab.methods.core.view import Slots, View


@dataclass(frozen=True)
class Decision:
    """A decision for one bucket; `before` is its table just before, if observed, valid until `adopt`."""

    view: View
    plan: Plan
    before: Slots
    after: Slots


class Bucket:
    """Part of a layer: one until the prompt is settled, and after that too if all heads keep equally many slots."""

    def __init__(self, table: SlotTable) -> None:
        self.table = table
        self.quota: Quota | None = None  # None before the prompt is complete
        self.started = False  # every row has exceeded its budget before
        self.first_decision: tuple[int, int, int] | None = None  # its slots, tokens and end of pass
        self.evicted_votes = torch.zeros(
            table.slots.keys.shape[:2], device=table.slots.keys.device
        )  # votes lost to eviction
        self.guard_activations = torch.zeros_like(self.evicted_votes)
        # (key, kernel input) of the last in-place decision
        self.last_work: tuple[tuple[object, ...], Work | None] = (), None

    @property
    def is_over(self) -> bool:
        """Whether some head may exceed its budget."""
        return self.quota is not None and self.table.occupied > self.quota.smallest

    def attend(self, seen: PassSeen, every_step: bool) -> Tensor:
        """Output (N, W * G, q, d) of this pass; attention weights are computed along if the method needs them."""
        values = self.table.states()[1]
        if seen.has_state:
            return seen.attend_with_state(values)
        if seen.num_new == 1 and (every_step or not seen.is_plain):
            return seen.attend_one(values)
        return seen.attend(values)

    def decide(self, view: View, settings: LayerSettings, check: Callable[[Plan], None]) -> Decision:
        """Make a plan and apply it to the table, unless `check` raises."""
        slots, table = view.slots, self.table
        plan = settings.pipeline.plan(view)
        check(plan)
        self.evicted_votes += _votes_lost(slots, plan) if plan.lost is None else plan.lost
        if plan.guard_activations is not None:
            self.guard_activations += plan.guard_activations
        before = TableSnapshot.of(slots, plan) if settings.observes_slots else slots
        after = table.after(slots, plan, view.seen.rotary)
        table.weighted = table.weighted or plan.edges is not None or plan.log_mass is not None
        table.store_head_state(plan.head_state or {})
        return Decision(view, plan, before, after)

    def work_key(self) -> tuple[object, ...]:
        """Identity of all tensors an in-place decision uses, except the newest query's attention."""
        table = self.table
        return table.slots, table.width, self.quota and self.quota.slots, self.evicted_votes, *table.head_state.values()

    def reusable_work(self) -> Work | None:
        """The last in-place kernel input, if it can be reused because its tensors are the same."""
        known, work = self.last_work
        return work if work is not None and all(map(operator.is_, self.work_key(), known)) else None

    def note_decision(self, work: Work) -> None:
        """Account for an in-place decision: every head exceeded its budget before and meets it now."""
        assert self.quota is not None
        self.table.occupied = min(self.table.occupied, self.quota.largest)
        self.table.is_dense, self.table.weighted = False, self.table.weighted or work.kind not in LEAVE_NO_TRACE
        if work.left is not None:
            self.table.note_freed(work.left, work.full)

    def adopt(self, after: Slots, lengths: list[int], bound: int | None = None) -> None:
        """Install the table that a decision left; `lengths`: tokens each stream has seen.

        No head has more than `bound` valid slots (default: its budget).
        """
        assert self.quota is not None
        self.table.adopt(after, self.quota.largest if bound is None else bound)
        pairs = zip(lengths, self.quota.per_row, strict=True)
        self.started = all(tokens > slots for tokens, slots in pairs)  # more than any head of the row may keep

    def part(self, table: SlotTable, take: Callable[[Tensor], Tensor]) -> Bucket:
        """Bucket of some streams, whose slots are already in `table`; `take` selects them from a tensor (N, W, ...)."""
        part = Bucket(table)
        part.table.head_state = {name: take(tensor) for name, tensor in self.table.head_state.items()}
        part.quota, part.started = self.quota and self.quota.part(take(self.quota.slots)), self.started
        part.first_decision = self.first_decision
        part.evicted_votes, part.guard_activations = take(self.evicted_votes), take(self.guard_activations)
        return part

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Select, repeat or permute streams."""
        self.table.map_rows(change)
        self.evicted_votes, self.guard_activations = change(self.evicted_votes), change(self.guard_activations)
        if self.quota is not None:
            self.quota.map_rows(change(self.quota.slots))


def _votes_lost(slots: Slots, plan: Plan) -> Tensor:
    """Votes (N, W) of slots that are evicted without being merged."""
    removed = (slots.votes * (slots.valid & ~plan.keep)).sum(-1)
    if plan.edges is None:
        return removed
    return removed - (slots.votes.gather(2, plan.edges.source) * plan.edges.active).sum(-1)
