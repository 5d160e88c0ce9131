"""A layer with several tables presented to observers as one table (B, H, S), one pass, one plan.

Only the last query of such a pass can be evaluated again (`joined_view`). Counting observers get validity only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvlab.attention.low_rank_state import LowRankState
from kvlab.attention.pass_view import PassSeen
from kvlab.cache.buckets.bucket import Decision
from kvlab.cache.buckets.joined_view import JoinedPass, JoinedSlots
from kvlab.cache.table.head_index import Streams
from kvlab.methods.core.plan import Plan
from kvlab.methods.core.view import Seen, Slots, View


def join_passes(
    streams: Streams, seen: Sequence[PassSeen], slots: Sequence[Slots], query: Tensor, reads_slots: bool
) -> tuple[Slots, PassSeen]:
    """Join the tables of a pass and the pass itself."""
    if streams.whole:
        return slots[0], seen[0]
    common: dict[str, Any] = {
        "query": query,
        "row_valid": None,
        "members": None,
        "recalled": None,
        "low_rank": _whole_state(streams, seen),
        "alibi": streams.join_padded([part.alibi for part in seen]),
        "sinks": _whole_sinks(streams, seen),
        "_last_logits": None,
        "_last_mass": None,
    }
    if reads_slots:
        table = JoinedSlots.of(streams, slots)
        return table, JoinedPass.of(table, seen, **common, bias=table.bias())
    nothing = _nothing(streams, query)
    return nothing, replace(seen[0], **common, key=nothing.keys, bias=nothing.bias())


def join_decisions(
    streams: Streams, seen: PassSeen, views: Sequence[View], decisions: Sequence[Decision | None], reads_slots: bool
) -> Decision:
    """Join the decisions of all buckets; None for a bucket without one."""
    made = [
        Decision(view, Plan(view.slots.valid), view.slots, view.slots) if decision is None else decision
        for view, decision in zip(views, decisions, strict=True)
    ]
    if streams.whole:
        return made[0]
    join = streams.join_padded
    plan = join([decision.plan for decision in made])
    before: Slots
    after: Slots
    if reads_slots:
        before, after = (JoinedSlots.of(streams, [getattr(one, name) for one in made]) for name in ("before", "after"))
    else:
        nothing = _nothing(streams, seen.query)
        before = replace(nothing, valid=join([decision.before.valid for decision in made]))
        after = replace(nothing, valid=plan.keep)
    view = replace(
        views[0],
        slots=before,
        seen=_beside_state(seen, _whole_state(streams, [view.seen for view in views])),
        budget=streams.join([view.budget for view in views]),
        tokens_seen=_of_rows(streams, [view.tokens_seen for view in views]),
        most_excess=max(view.most_excess for view in views),
        largest_budget=max(view.largest_budget for view in views),
        started=all(view.started for view in views),
        head_state=join([view.head_state for view in views]),
    )
    return Decision(view, plan, before, after)


def _beside_state(seen: PassSeen, state: LowRankState | None) -> PassSeen:
    return seen.with_state(state) if isinstance(seen, JoinedPass) else replace(seen, low_rank=state)


def _whole_state(streams: Streams, seen: Sequence[Seen]) -> LowRankState | None:
    """Joined low-rank states of all heads."""
    states = [part.low_rank for part in seen if isinstance(part, PassSeen) and part.low_rank is not None]
    return replace(states[0], noted=streams.join_padded([state.noted for state in states])) if states else None


def _whole_sinks(streams: Streams, seen: Sequence[PassSeen]) -> Tensor | None:
    """Learned-sink logits (B, H, G)."""
    parts = [part.sinks for part in seen if part.sinks is not None]
    return streams.join(parts) if parts else None


def _of_rows(streams: Streams, parts: Sequence[Tensor]) -> Tensor:
    """(B,) from each bucket's (N,)."""
    wide = streams.join([part[:, None].expand(-1, streams.width) for part in parts])
    return wide[:, 0]


def _nothing(streams: Streams, like: Tensor) -> Slots:
    """An empty table (B, H, 0, 1)."""
    none = like.new_empty(streams.batch, streams.heads, 0, 1)
    numbers, no = none[..., 0].float(), torch.zeros_like(none[..., 0], dtype=torch.bool)
    return Slots(none, none, numbers.int(), numbers, numbers, numbers, no)
