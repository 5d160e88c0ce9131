"""Numerical health of a layer: slots that are not finite, and by how much a decision made keys and values longer."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.methods.plan import Edges, Plan
from kvlab.methods.settlers.groups import at, max_to_target
from kvlab.methods.view import Slots

SMALLEST = torch.finfo(torch.float32).tiny


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
    if plan.edges is not None and plan.edges.source.shape[2] and plan.value_shift is None and plan.new_keys is None:
        return _growth_of_targets(was, plan.edges, now)
    longest = _length(was)
    if plan.edges is not None:
        sources = longest.gather(2, plan.edges.source).masked_fill(~plan.edges.active, 0.0)
        longest = longest.scatter_reduce(2, plan.edges.target, sources, "amax")
    ratio = _length(now) / longest.clamp_min(SMALLEST)
    return ratio.masked_fill(~plan.keep, 1.0)[0].amax(-1).clamp_min(1.0)


def _growth_of_targets(was: Tensor, edges: Edges, now: Tensor) -> Tensor:
    """Where only edges change slots, their few targets are all there is to measure."""
    sources = max_to_target(_length(at(was, edges.source)), edges.target, edges.active, was.shape[2])
    longest = torch.maximum(_length(at(was, edges.target)), sources)
    ratio = _length(at(now, edges.target)) / longest.clamp_min(SMALLEST)
    return torch.where(edges.active, ratio, 1.0)[0].amax(-1).clamp_min(1.0)


def _length(vectors: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float32)
