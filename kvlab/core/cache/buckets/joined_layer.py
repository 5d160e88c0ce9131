"""A layer with several tables presented to observers as one table (B, H, S), one pass, one plan.

Slots keep their place in their own table, and short heads are padded with invalid slots. A joined column is a padded
copy of the layer's, so it is joined only on access, and per-slot questions are answered table by table. Only the last
query of such a pass can be evaluated again. Counting observers get validity only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields, replace
from typing import Any, cast

import torch
from torch import Tensor

from kvlab.core.attention.low_rank_state import LowRankState
from kvlab.core.attention.pass_view import PassView
from kvlab.core.cache.buckets.bucket import Decision
from kvlab.core.cache.table.head_index import HeadIndex
from kvlab.core.contract import AttentionPass, Plan, Slots, View, gather

JOINED = frozenset(one.name for one in fields(Slots))
NONE_YET = cast(Tensor, None)


class JoinedSlots(Slots):
    """Slots (B, H, S) of several tables, each column joined on first access; valid until a table changes."""

    head_index: HeadIndex
    parts: Sequence[Slots] = ()

    @classmethod
    def join(cls, head_index: HeadIndex, parts: Sequence[Slots]) -> JoinedSlots:
        """Join the slots of all tables, in the order of the buckets of `head_index`."""
        made = object.__new__(cls)
        made.head_index = head_index
        made.parts = parts
        return made

    def __getattr__(self, name: str) -> Any:
        if name not in JOINED or not self.parts:
            raise AttributeError(name)
        value = self.head_index.join_padded([getattr(part, name) for part in self.parts])
        setattr(self, name, value)
        return value


class JoinedPass(PassView):
    """Passes over several tables as one; keys are joined on first access."""

    slots: JoinedSlots
    parts: Sequence[PassView] = ()

    def logits_at_slots(self, slots: Slots) -> Tensor:
        """As for a single table; computed per table with its own queries."""
        if not isinstance(slots, JoinedSlots) or not slots.parts or not self.parts:
            return super().logits_at_slots(slots)
        pairs = zip(self.parts, slots.parts, strict=True)
        found = [
            layer_pass.logits_at_slots(part)[:, :, :, 0].transpose(2, 3) for layer_pass, part in pairs
        ]  # (N, W, S, G)
        return slots.head_index.join_padded(found).transpose(2, 3)[:, :, :, None].contiguous()

    def kept_mass(self, slots: int) -> Tensor | None:
        """As for a single table, if sparse attention left slots out; else the parts are evaluated again."""
        if any(part.read is None for part in self.parts):
            return None
        return self.slots.head_index.join_padded([part.last_mass() for part in self.parts])

    def share_read(self) -> Tensor | None:
        """As for a single table."""
        shares = [part.share_read() for part in self.parts]
        return None if any(share is None for share in shares) else self.slots.head_index.join_padded(shares)

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return self.slots.keys if value is None and name == "key" else value


def per_table(slots: Slots, work: Callable[..., Tensor], *beside: Tensor) -> Tensor:
    """Apply `work` to slots (N, W, S, ...) of each table and join the results, (B, H, ...).

    `work` also gets the parts of the tensors `beside` (B, H, ...), which are as long as the longest table.
    """
    if not isinstance(slots, JoinedSlots) or not slots.parts:
        return work(slots, *beside)
    apart = [slots.head_index.by_head(one) for one in beside]
    return slots.head_index.join_padded([work(*given) for given in zip(slots.parts, *apart, strict=True)])


def states_at(slots: Slots, name: str, index: Tensor) -> Tensor:
    """`keys` or `values` (B, H, E, d) at slots `index` (B, H, E)."""
    return per_table(slots, lambda part, where: gather(getattr(part, name), where), index)


def measure_slots(slots: Slots, name: str, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `measure` to each slot's key or value, `keys` or `values` (N, W, S, d); returns (B, H, S)."""
    return per_table(slots, lambda part: measure(getattr(part, name)))


def join_passes(
    head_index: HeadIndex, passes: Sequence[PassView], slots: Sequence[Slots], query: Tensor, reads_slots: bool
) -> tuple[Slots, PassView]:
    """Join the tables of a pass and the pass itself."""
    if head_index.whole:
        return slots[0], passes[0]
    sinks = [part.sinks for part in passes if part.sinks is not None]
    common: dict[str, Any] = {
        "query": query,
        "row_valid": None,
        "members": None,
        "recalled": None,
        "low_rank": _whole_state(head_index, passes),
        "alibi": head_index.join_padded([part.alibi for part in passes]),
        "sinks": head_index.join(sinks) if sinks else None,
        "_last_logits": None,
        "_last_mass": None,
    }
    if reads_slots:
        table = JoinedSlots.join(head_index, slots)
        fields_of_first = {
            one.name: getattr(passes[0], one.name) for one in fields(PassView) if one.init and one.name != "key"
        }
        joined = JoinedPass(**fields_of_first | common | {"bias": table.bias(), "key": NONE_YET})
        joined.slots = table
        joined.parts = passes
        return table, joined
    nothing = _nothing(head_index, query)
    return nothing, replace(passes[0], **common, key=nothing.keys, bias=nothing.bias())


def join_decisions(
    head_index: HeadIndex,
    layer_pass: PassView,
    views: Sequence[View],
    decisions: Sequence[Decision | None],
    reads_slots: bool,
) -> Decision:
    """Join the decisions of all buckets; None for a bucket without one."""
    made = [
        Decision(view, Plan(view.slots.valid), view.slots, view.slots) if decision is None else decision
        for view, decision in zip(views, decisions, strict=True)
    ]
    if head_index.whole:
        return made[0]
    join = head_index.join_padded
    plan = join([decision.plan for decision in made])
    before: Slots
    after: Slots
    if reads_slots:
        before, after = (
            JoinedSlots.join(head_index, [getattr(one, name) for one in made]) for name in ("before", "after")
        )
    else:
        nothing = _nothing(head_index, layer_pass.query)
        before = replace(nothing, valid=join([decision.before.valid for decision in made]))
        after = replace(nothing, valid=plan.keep)
    state = _whole_state(head_index, [view.layer_pass for view in views])
    tokens_seen = head_index.join([view.tokens_seen[:, None].expand(-1, head_index.width) for view in views])
    # A joined pass is copied as it is, since its fields are read from the parts.
    whole = copy(layer_pass) if isinstance(layer_pass, JoinedPass) else replace(layer_pass)
    whole.low_rank = state
    view = replace(
        views[0],
        slots=before,
        layer_pass=whole,
        budget=head_index.join([view.budget for view in views]),
        tokens_seen=tokens_seen[:, 0],
        most_excess=max(view.most_excess for view in views),
        largest_budget=max(view.largest_budget for view in views),
        started=all(view.started for view in views),
        head_state=join([view.head_state for view in views]),
    )
    return Decision(view, plan, before, after)


def _whole_state(head_index: HeadIndex, passes: Sequence[AttentionPass]) -> LowRankState | None:
    """Joined low-rank states of all heads."""
    states = [part.low_rank for part in passes if isinstance(part, PassView) and part.low_rank is not None]
    return replace(states[0], noted=head_index.join_padded([state.noted for state in states])) if states else None


def _nothing(head_index: HeadIndex, like: Tensor) -> Slots:
    """An empty table (B, H, 0, 1)."""
    none = like.new_empty(head_index.batch, head_index.heads, 0, 1)
    numbers = none[..., 0].float()
    no = torch.zeros_like(none[..., 0], dtype=torch.bool)
    return Slots(none, none, numbers.int(), numbers, numbers, numbers, no)
