"""A bucket: head sets of similar length with their table, budget (slots per head), and decisions."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvlab.core.budget import UNLIMITED, Sizes
from kvlab.core.cache.settings import LayerSettings
from kvlab.core.cache.table.apply_plan import TableSnapshot
from kvlab.core.cache.table.slot_table import SlotTable
from kvlab.core.contract import Index, Plan, Slots, View, Work, native_slots
from kvlab.core.stores import store_bytes


@dataclass(frozen=True)
class Decision:
    """A decision for one bucket; `before` is its table just before, if observed, valid until `install`."""

    view: View
    plan: Plan
    before: Slots
    after: Slots


class Bucket:
    """Part of a layer: one until the prompt is settled, and after that too if all heads keep equally many slots."""

    # Tokens that wait for a decision in these rows beyond those in the layer: rows without a token in a turn are not
    # decided about at its end. States in files have it only where it is not zero.
    ahead: int = 0

    def __init__(self, table: SlotTable) -> None:
        self.table = table
        self.head_budgets: HeadBudgets | None = None  # None before the prompt is complete
        self.started = False  # every row has exceeded its budget before
        self.evicted_votes = torch.zeros(
            table.slots.keys.shape[:2], device=table.slots.keys.device
        )  # votes lost to eviction
        self.guard_activations = torch.zeros_like(self.evicted_votes)
        self.index: Index | None = None  # of sparse attention, over the table's slots; None: to be built
        self.index_counts = False  # the index has sums over slots, which change when one leaves
        self.index_summarises = False  # the index has bounds or means over slots, taken again where a token is written
        self.indexed: object = None  # the table's arrangement when the index was current
        self.last_read: Tensor | None = None  # (N, W) bytes that the last decode step read, with sparse attention
        # (key, kernel input) of the last in-place decision
        self.last_work: tuple[tuple[object, ...], Work | None] = (), None

    def __getstate__(self) -> dict[str, Any]:
        """Without the last kernel input, whose arrays a copy or a pickle would cut off from the table."""
        return vars(self) | {"last_work": ((), None)}

    def plan_and_apply(self, view: View, settings: LayerSettings, check: Callable[[Plan], None]) -> Decision:
        """Make a plan and apply it to the table, unless `check` raises."""
        slots = view.slots
        table = self.table
        plan = settings.pipeline.plan(view)
        check(plan)
        lost = plan.lost
        if lost is None:  # votes (N, W) of slots that are evicted without being merged
            lost = (slots.votes * (slots.valid & ~plan.keep)).sum(-1)
            if plan.edges is not None:
                lost = lost - (slots.votes.gather(2, plan.edges.source) * plan.edges.active).sum(-1)
        self.evicted_votes += lost
        if plan.guard_activations is not None:
            self.guard_activations += plan.guard_activations
        before = TableSnapshot.take(slots, plan) if settings.observes_slots else slots
        after = table.after(slots, plan, view.layer_pass.rotary)
        table.weighted = table.weighted or plan.edges is not None or plan.log_mass is not None
        table.store_head_state(plan.head_state or {})
        if plan.edges is not None or plan.new_keys is not None or self.index_counts:
            self.index = None  # of keys that have changed; evicted slots are hidden by the bias
        elif self.index_summarises and not (view.certain and view.most_excess == 1):
            self.index = None  # of more than the one slot that the next token fills
        return Decision(view, plan, before, after)

    def work_key(self) -> tuple[object, ...]:
        """Identity of all tensors an in-place decision uses, except the newest query's attention."""
        table = self.table
        return (
            table.slots,
            table.width,
            self.head_budgets and self.head_budgets.slots,
            self.evicted_votes,
            *table.head_state.values(),
        )

    def install(self, after: Slots, lengths: list[int]) -> None:
        """Install the table that a decision left; `lengths`: tokens each head set has seen."""
        assert self.head_budgets is not None
        self.table.adopt(after, self.head_budgets.largest)
        pairs = zip(lengths, self.head_budgets.per_row, strict=True)
        self.started = all(tokens > slots for tokens, slots in pairs)  # more than any head of the row may keep

    def part(self, table: SlotTable, take: Callable[[Tensor], Tensor]) -> Bucket:
        """Bucket of head sets whose slots are already in `table`; `take` selects them from a tensor (N, W, ...)."""
        part = Bucket(table)
        part.table.head_state = {name: take(tensor) for name, tensor in self.table.head_state.items()}
        part.head_budgets = self.head_budgets and HeadBudgets(take(self.head_budgets.slots))
        part.started = self.started
        if self.ahead:
            part.ahead = self.ahead
        part.evicted_votes, part.guard_activations = take(self.evicted_votes), take(self.guard_activations)
        return part

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Select, repeat or permute head sets."""
        self.table.map_rows(change)
        self.evicted_votes, self.guard_activations = change(self.evicted_votes), change(self.guard_activations)
        self.index = None if self.index is None else {name: change(part) for name, part in self.index.items()}
        if self.head_budgets is not None:
            self.head_budgets.map_rows(change(self.head_budgets.slots))


class HeadBudgets:
    """`slots` (B, H) each head may keep, resolved once from the first prompt; the other numbers are host bounds."""

    def __init__(self, slots: Tensor, per_row: list[int] | None = None) -> None:
        """`per_row`: the equal budget of a row's heads; None: read from `slots`, which waits for the device."""
        self.remembered: dict[Hashable, tuple[Tensor, Any]] = {}  # values derived from the budget, for `View.of_budget`
        self.put(slots, per_row)

    @classmethod
    def of_layer(
        cls, settings: LayerSettings, rank: int, lengths: list[int], heads: int, device: torch.device, sizes: Sizes
    ) -> HeadBudgets:
        """Equal share for every head, for prompts of `lengths` tokens; `sizes` convert bytes to slots."""
        # Deciding every N steps needs N - 1 slots of slack inside the budget so that it is never exceeded.
        slack = settings.compress_every - 1 if settings.pipeline.decode else 0
        per_row = []
        for tokens in lengths:
            budget = UNLIMITED
            average = settings.budget.slots(tokens, sizes)
            if average < UNLIMITED:
                share = max(1, average - slack)
                budget = settings.pipeline.allocate.layer_budgets(share, tokens, settings.num_layers)[rank]
            per_row.append(budget)
        slots = torch.tensor(per_row, device=device)[:, None].expand(-1, heads).contiguous()
        return cls(slots, per_row)

    def put(self, slots: Tensor, per_row: list[int] | None = None) -> None:
        """Install other budgets (B, H), with `per_row` as above."""
        self.slots = slots
        self.per_row = slots.amax(-1).tolist() if per_row is None else per_row
        self.smallest = int(slots.min()) if per_row is None else min(per_row)
        self.largest = max(self.per_row)

    def map_rows(self, rows: Tensor) -> None:
        """Install budgets (B', H) after batch rows were selected, repeated or permuted."""
        if rows.shape[0] == self.slots.shape[0]:
            self.slots = rows
        else:
            self.put(rows)


def sizes_of(settings: LayerSettings, table: SlotTable, heads: int, rows: int) -> Sizes:
    """Byte sizes of one KV head whose unquantized prompt is in `table`; `heads`: total over layers and rows."""
    keys, values = table.native_states()
    token = sum(states[0, 0, 0].nbytes for states in (keys, values))
    slot = table.slot_bytes()
    store = settings.store
    beside = settings.pipeline.settler_bytes(keys, values) + settings.pipeline.columns.head_bytes
    if settings.pipeline.decode:  # tokens buffered in addition, and recalled queries
        beside += settings.pipeline.buffer * slot
        beside += settings.pipeline.recalled * settings.group * keys[0, 0, 0].nbytes
    if not store.packs:
        return Sizes(token, slot, slot, beside=beside, heads=heads)
    code_bytes, shared = store_bytes(store, keys.shape[-1], values.shape[-1])
    native, groups = native_slots(store, settings.pipeline, settings.compress_every)
    slot -= settings.pipeline.columns.lighter
    packed = slot - token + code_bytes + shared / store.lot
    beside += groups * shared + store.head_bytes(keys.shape[-1], values.shape[-1])
    return Sizes(token, slot, packed, native, beside, heads)
