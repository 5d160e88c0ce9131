"""Numerical health of a layer: slots that are not finite, and by how much a decision made keys and values longer."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from kvlab.cache.buckets.joined_view import STATES, measured
from kvlab.methods.core.plan import Plan
from kvlab.methods.core.view import Slots


def lengths(slots: Slots) -> Tensor:
    """(2, H, S) float32: the lengths of keys and of values. Batch of one."""
    norm = partial(torch.linalg.vector_norm, dim=-1, dtype=torch.float32)
    return torch.stack([measured(slots, name, norm)[0] for name in STATES])


def non_finite(slots: Slots, taken: Tensor | None = None) -> Tensor:
    """(H, S) bool: valid slots whose key, value or log mass holds an infinity or no number. Batch of one.

    `taken` are their `lengths`, where they are known.
    """
    # One sum instead of asking each number: it is finite when all its parts are, but for overflow worth telling too.
    if taken is None:
        keys, values = (measured(slots, name, partial(torch.sum, dim=-1, dtype=torch.float32)) for name in STATES)
        total = keys + values + slots.log_mass
    else:
        total = slots.log_mass + taken.sum(0)
    return (slots.valid & ~torch.isfinite(total))[0]


def growth(before: Tensor, plan: Plan, after: Tensor) -> dict[str, Tensor]:
    """`key_growth` and `value_growth`, (H,) each: the largest length of a slot over that of the longest of its parts.

    From the `lengths` before and after `plan`. 1 where nothing grew: means of keys never do, added values and rescaled
    keys may.
    """
    longest = before
    if plan.edges is not None:
        parts = (plan.edges.source, plan.edges.target, plan.edges.active)
        source, target, active = (part.expand(2, -1, -1) for part in parts)
        sources = before.gather(2, source).masked_fill(~active, 0.0)
        longest = before.scatter_reduce(2, target, sources, "amax")
    ratio = after / longest.clamp_min(torch.finfo(torch.float32).tiny)
    keys, values = ratio.masked_fill(~plan.keep, 1.0).amax(-1).clamp_min(1.0)
    return {"key_growth": keys, "value_growth": values}
