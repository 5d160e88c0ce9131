"""exactmerge while decoding: merge a victim into a residual slot or evict it, whichever queries prefer."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kvlab.core.contract.parts import Selector
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.view import View
from kvlab.core.methods.settlers.edges import first_of, gather
from kvlab.core.methods.settlers.residuals.observed_queries import Grouping, Observed, nearest_pivot

TINY = 1e-9


def settle_while_decoding(view: View, select: Selector, window: int, most: int) -> Plan:
    """Choose the lowest scores as victims; heads merge them if that changes the newest queries' outputs less.

    Residual slots, at most `most` per head, take part but are never evicted. Parts are weighted by their scores
    (attention over about `window` queries); the log mass is exact for the queries of this pass but at most log(votes),
    because one query says little about the next.
    """
    slots = view.slots
    residual = slots.valid & (slots.votes > 1)
    room = (view.budget - residual.sum(-1)).clamp_min(1)
    victims = select.victims(replace(view, budget=room), view.excess(), view.most_excess, barred=residual)
    keep = victims.keep(slots.valid)
    pivot, exists = first_of(residual, most)
    merges = victims.active & residual.any(-1, keepdim=True)
    near = nearest_pivot(slots.keys, victims.index, pivot, exists)
    grouping = Grouping(victims.index, merges, victims.active, near, pivot, exists)
    observed, weight = Observed.of(view, window), slots.score.clamp_min(0) + TINY
    stays = keep & ~torch.zeros_like(keep).scatter(2, pivot, exists)
    most_mass = grouping.sums(slots.votes).clamp_min(1).log().maximum(gather(slots.log_mass, pivot))
    trial, log_mass = grouping.trial(observed, stays, slots.values, weight, most_mass)
    rows = torch.ones_like(observed.held_back)
    better = trial.error(observed, rows, None) < _eviction_error(observed, keep, slots.values)
    grouping = replace(grouping, active=merges & better[..., None])
    return Plan(keep=keep, edges=grouping.edges(view, weight, log_mass))


def _eviction_error(observed: Observed, keep: Tensor, values: Tensor) -> Tensor:
    """Relative output error (B, H) over the queries if only `keep` (B, H, S) is kept."""
    kept = observed.mass * keep[:, :, None]
    output = kept @ values.float() / (kept.sum(-1, keepdim=True) + observed.beside).clamp_min(TINY)
    scale = observed.weight.sqrt()[..., None]
    gap, true = (observed.output - output) * scale, observed.output * scale
    return gap.flatten(2).norm(dim=-1) / true.flatten(2).norm(dim=-1).clamp_min(1e-12)
