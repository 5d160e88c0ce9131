"""Rows of the `events` table: one for each slot that left."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kvlab.engine.measure import Answer, relative_error
from kvlab.methods.plan import Edges, Plan
from kvlab.methods.view import Slots

EVICTED = -1


def event_columns(
    before: Slots, plan: Plan, after: Slots, given: Answer, answered: Answer, leaving: Tensor
) -> dict[str, np.ndarray]:
    """Columns (one entry an event) of all that left one layer: evictions first, then merges. Batch of one.

    `given` and `answered` are what the same query got before and after, `leaving` (H, S) the slots that left.
    """
    edge = _edge_of_slot(before, plan)  # (H, S): index of the slot's active edge, -1 if it has none
    perturbation = relative_error(answered.output, given.output, leaving.shape[0])
    merged = _merges(before, plan, after, given, answered, leaving & (edge >= 0), edge)
    which = (leaving & (edge < 0)).nonzero(as_tuple=True)
    if merged is None or len(which[0]):
        evicted = _evictions(before, which, given)
        columns = evicted if merged is None else {n: np.concatenate([evicted[n], merged[n]]) for n in evicted}
    else:
        columns = merged
    columns["perturbation"] = perturbation.cpu().numpy()[columns["head"]]
    return columns


def absent_columns(absent: Tensor, heads: int) -> dict[str, np.ndarray]:
    """Evictions of tokens that never reached a layer (prefill saving): `absent` (T,) bool, the same in every head.

    Without a key they got no mass there and their leaving perturbed nothing.
    """
    source = np.tile(absent.nonzero()[:, 0].cpu().numpy(), heads)
    count = len(source)
    nothing, zero = np.full(count, np.nan, dtype=np.float32), np.zeros(count, dtype=np.float32)
    names = ("similarity", "votes_target", "votes_after", "mass_target", "mass_after", "sag")
    return dict.fromkeys(names, nothing) | {
        "head": np.repeat(np.arange(heads), count // heads),
        "kind": np.full(count, "evict", dtype=object),
        "source": source,
        "target": np.full(count, EVICTED),
        "key_weight": zero,
        "value_weight": zero,
        "votes_source": zero + 1,
        "mass_source": zero,
        "perturbation": zero,
    }


def _edge_of_slot(before: Slots, plan: Plan) -> Tensor:
    heads, width = before.valid.shape[1:]
    edge = torch.full((heads, width + 1), -1, device=before.valid.device)
    if plan.edges is not None:
        source = torch.where(plan.edges.active[0], plan.edges.source[0], width)
        edge.scatter_(1, source, torch.arange(source.shape[1], device=edge.device).expand_as(source))
    return edge[:, :width]


def _evictions(before: Slots, which: tuple[Tensor, ...], given: Answer) -> dict[str, np.ndarray]:
    head, slot = (index.cpu() for index in which)
    count = len(head)
    nothing = np.full(count, np.nan, dtype=np.float32)
    mass = _pick(given.mass, head, slot)
    return {
        "head": head.numpy(),
        "kind": np.full(count, "evict", dtype=object),
        "source": _pick(before.position[0], head, slot),
        "target": np.full(count, EVICTED),
        "similarity": nothing,
        "key_weight": np.zeros(count, dtype=np.float32),
        "value_weight": np.zeros(count, dtype=np.float32),
        "votes_source": _pick(before.votes[0], head, slot),
        "votes_target": nothing,
        "votes_after": nothing,
        "mass_source": mass,
        "mass_target": nothing,
        "mass_after": nothing,
        "sag": nothing,
    }


def _merges(
    before: Slots, plan: Plan, after: Slots, given: Answer, answered: Answer, which: Tensor, edge: Tensor
) -> dict[str, np.ndarray] | None:
    if plan.edges is None:
        return None
    head, slot = (index.cpu() for index in which.nonzero(as_tuple=True))
    if len(head) == 0:
        return None
    edges, index = plan.edges, edge.cpu()[head, slot]
    target = torch.from_numpy(_pick(edges.target[0], head, index))
    # The mass of a target's whole group before the step: its own plus that of everything merged into it.
    group = given.mass.clone()
    sources = given.mass.gather(1, edges.source[0]).masked_fill(~edges.active[0], 0.0)
    group.scatter_add_(1, edges.target[0], sources)
    mass_after = _pick(answered.mass, head, target)
    return {
        "head": head.numpy(),
        "kind": np.full(len(head), edges.kind, dtype=object),
        "source": _pick(before.position[0], head, slot),
        "target": _pick(before.position[0], head, target),
        "similarity": _similarity(before, edges, head, slot, target, index),
        "key_weight": np.zeros(len(head)) if edges.key_weight is None else _pick(edges.key_weight[0], head, index),
        "value_weight": _pick(edges.value_weight[0], head, index),
        "votes_source": _pick(before.votes[0], head, slot),
        "votes_target": _pick(before.votes[0], head, target),
        "votes_after": _pick(after.votes[0], head, target),
        "mass_source": _pick(given.mass, head, slot),
        "mass_target": _pick(given.mass, head, target),
        "mass_after": mass_after,
        "sag": _pick(group, head, target) - mass_after,
    }


def _similarity(before: Slots, edges: Edges, head: Tensor, slot: Tensor, target: Tensor, index: Tensor) -> np.ndarray:
    if edges.similarity is not None:
        return _pick(edges.similarity[0], head, index)
    keys = before.keys[0].cpu().float()
    return torch.cosine_similarity(keys[head, slot], keys[head, target], dim=-1).numpy()


def _pick(tensor: Tensor, head: Tensor, index: Tensor) -> np.ndarray:
    return tensor.cpu()[head, index].numpy()
