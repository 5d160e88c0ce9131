"""Numerical health of a layer: slots that are not finite, and by how much a decision made keys and values longer."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.methods.plan import Plan
from kvlab.methods.view import Slots


def non_finite(slots: Slots) -> Tensor:
    """(H,) float32: valid slots whose key, value or log mass holds an infinity or no number. Batch of one."""
    # One sum instead of asking each number: it is finite when all its parts are, but for overflow worth telling too.
    total = slots.keys.sum(-1, dtype=torch.float32) + slots.values.sum(-1, dtype=torch.float32) + slots.log_mass
    return (slots.valid & ~torch.isfinite(total))[0].sum(-1, dtype=torch.float32)


def growth(before: Slots, plan: Plan, after: Slots) -> dict[str, Tensor]:
    """`key_growth` and `value_growth`, (H,) each: the largest length of a slot over that of the longest of its parts.

    1 where nothing grew: means of keys never do, added values and rescaled keys may. Batch of one.
    """
    return {
        "key_growth": _growth(before.keys, plan, after.keys),
        "value_growth": _growth(before.values, plan, after.values),
    }


def _growth(was: Tensor, plan: Plan, now: Tensor) -> Tensor:
    longest = _length(was)
    if plan.edges is not None:
        sources = longest.gather(2, plan.edges.source).masked_fill(~plan.edges.active, 0.0)
        longest = longest.scatter_reduce(2, plan.edges.target, sources, "amax")
    ratio = _length(now) / longest.clamp_min(torch.finfo(torch.float32).tiny)
    return ratio.masked_fill(~plan.keep, 1.0)[0].amax(-1).clamp_min(1.0)


def _length(vectors: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float32)
