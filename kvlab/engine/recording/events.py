"""Rows of the `events` table: one per evicted or merged slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvlab.core.cache.buckets.joined_layer import states_at
from kvlab.core.contract.plan import Edges, Plan
from kvlab.core.contract.view import Slots
from kvlab.engine.recording.shadow import Answer
from kvlab.engine.recording.step_errors import relative_error
from kvlab.requests.recording import decision_that_fits
from kvlab.trace import RunWriter

EVICTED = -1
EDGES_AT_ONCE = 256  # at most; fewer for a short prompt, to keep temporaries small
BLOCKS = 8
Place = tuple[np.ndarray, ...]  # head and slot of each event


def event_columns(
    before: Slots, plan: Plan, after: Slots, given: Answer, answered: Answer, leaving: Tensor
) -> dict[str, np.ndarray]:
    """Columns (one entry per event) of the slots that left one layer: evictions first, then merges. Batch of one.

    `given` and `answered` are the same query's results before and after, `leaving` (H, S) the slots that left.
    """
    evicted = _numpy(leaving).copy()
    merging = None
    parts = []
    if plan.edges is not None:
        merging = _active(plan.edges)
        evicted[merging.source] = False
        if len(merging.head):
            parts.append(_merges(before, plan.edges, merging, after, given, answered))
    place = evicted.nonzero()
    if len(place[0]) or not parts:
        position = _first(before.position)
        votes = _first(before.votes)
        mass = _numpy(given.mass)
        parts.insert(0, _evictions(place[0], position[place], votes[place], mass[place]))
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts[1:] else parts[0]
    columns["perturbation"] = _numpy(relative_error(answered.output, given.output, len(evicted)))[columns["head"]]
    return columns


def absent_columns(absent: Tensor, heads: int) -> dict[str, np.ndarray]:
    """Evictions of tokens that never reached a layer (prefill saving): `absent` (T,) bool, the same in every head.

    Having no key there, they got no mass and their eviction perturbed nothing.
    """
    source = np.tile(absent.nonzero()[:, 0].cpu().numpy(), heads)
    zero = np.zeros(len(source), dtype=np.float32)
    head = np.repeat(np.arange(heads), len(source) // heads)
    return _evictions(head, source, zero + 1, zero) | {"perturbation": zero}


@dataclass(frozen=True)
class _Merging:
    """Active merge edges: their index in the plan's tensors, and their slots."""

    head: np.ndarray
    edge: Place
    source: Place
    target: Place


def _active(edges: Edges) -> _Merging:
    edge = _first(edges.active).nonzero()
    head = edge[0]
    return _Merging(head, edge, (head, _first(edges.source)[edge]), (head, _first(edges.target)[edge]))


def _numpy(tensor: Tensor) -> np.ndarray:
    """The tensor on the host, where picking single numbers is cheap."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


def _first(tensor: Tensor) -> np.ndarray:
    return _numpy(tensor)[0]


def _evictions(head: np.ndarray, source: np.ndarray, votes: np.ndarray, mass: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of evictions, which have no target, from those of the slots that left."""
    count = len(head)
    nothing = np.full(count, np.nan, dtype=np.float32)
    zero = np.zeros(count, dtype=np.float32)
    names = ("similarity", "votes_target", "votes_after", "mass_target", "mass_after", "sag")
    return dict.fromkeys(names, nothing) | {
        "head": head,
        "kind": np.full(count, "evict", dtype=object),
        "source": source,
        "target": np.full(count, EVICTED),
        "key_weight": zero,
        "value_weight": zero,
        "votes_source": votes,
        "mass_source": mass,
    }


def _merges(
    before: Slots, edges: Edges, merging: _Merging, after: Slots, given: Answer, answered: Answer
) -> dict[str, np.ndarray]:
    position = _first(before.position)
    votes = _first(before.votes)
    mass = _numpy(given.mass)
    edge = merging.edge
    source = merging.source
    target = merging.target
    count = len(merging.head)
    # The mass of a target's whole group before the step: its own plus that of everything merged into it.
    group = mass.copy()
    mass_after = _numpy(answered.mass)[target]
    np.add.at(group, target, mass[source])
    return {
        "head": merging.head,
        "kind": np.full(count, edges.kind, dtype=object),
        "source": position[source],
        "target": position[target],
        "similarity": _similarity(before, edges, merging),
        "key_weight": np.zeros(count) if edges.key_weight is None else _first(edges.key_weight)[edge],
        "value_weight": _first(edges.value_weight)[edge],
        "votes_source": votes[source],
        "votes_target": votes[target],
        "votes_after": _first(after.votes)[target],
        "mass_source": mass[source],
        "mass_target": mass[target],
        "mass_after": mass_after,
        "sag": group[target] - mass_after,
    }


def _similarity(before: Slots, edges: Edges, merging: _Merging) -> np.ndarray:
    """Cosine similarity of the keys that each edge joins, in blocks: a prompt has nearly as many edges as keys."""
    if edges.similarity is not None:
        return _first(edges.similarity)[merging.edge]
    size = max(1, min(EDGES_AT_ONCE, before.position.shape[-1] // BLOCKS))
    parts = []
    for ends in zip(edges.source.split(size, -1), edges.target.split(size, -1), strict=True):
        source, target = (states_at(before, "keys", slots)[0].float() for slots in ends)
        parts.append(torch.cosine_similarity(source, target, dim=-1))
    return _numpy(torch.cat(parts, -1))[merging.edge]


ARRAY = "decision"


def write_decision(writer: RunWriter, layer_idx: int, before: Slots, plan: Plan, tokens: int) -> None:
    """Write a layer's decision about the `tokens` read so far, if requested and if it fits. Batch of one."""
    record = writer.record
    heads = before.score.shape[1]
    layers = [layer for layer in range(record.model.num_hidden_layers) if layer not in record.sliding_layers]
    wanted = record.recording.of_layers(layers)
    recorded = record.recording.of_heads(heads)
    kept, sentence = decision_that_fits(wanted, len(recorded), tokens)
    if sentence and ARRAY not in record.left_out:
        writer.update(left_out=record.left_out | {ARRAY: sentence})
    if layer_idx in kept:
        valid = before.valid[0]
        score = by_position(before, before.score, valid, tokens, torch.nan)
        stayed = by_position(before, plan.keep.float(), valid, tokens, 0.0)
        writer.write_arrays(ARRAY, layer_idx, {"score": _host(score, recorded), "kept": _host(stayed, recorded) > 0})


def by_position(slots: Slots, of_slots: Tensor, valid: Tensor, tokens: int, absent: float) -> Tensor:
    """Scatter (1, H, S) numbers of the `valid` (H, S) slots to their positions: (H, `tokens`)."""
    row = torch.full((valid.shape[0], tokens + 1), absent, device=valid.device)
    place = torch.where(valid, slots.position[0].long(), tokens)  # an extra column takes invalid slots
    return row.scatter(1, place, of_slots[0].float())[:, :tokens]


def _host(numbers: Tensor, heads: list[int]) -> np.ndarray:
    return numbers[heads].cpu().numpy()
