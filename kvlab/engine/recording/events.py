"""Rows of the `events` table: one per evicted or merged slot."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from kvlab.core.attention.pass_view import PassView
from kvlab.core.attention.slot_attention import probabilities
from kvlab.core.cache.buckets.joined_layer import measure_slots, per_table, states_at
from kvlab.core.contract import Edges, Plan, Slots
from kvlab.engine.recording.shadow import Answer, Shadow
from kvlab.requests.recording import decision_that_fits
from kvlab.trace import RunWriter

VALUE_BLOCK = 4096
STATES = ("keys", "values")


def answer(slots: Slots, layer_pass: PassView, logits: Tensor | None = None) -> Answer:
    """Evaluate the last query of `layer_pass` on the table `slots`; `logits` (1, H, G, 1, S) if already computed."""
    if logits is None:
        logits = layer_pass.logits_at_slots(slots)
    bias = slots.bias()
    if layer_pass.low_rank is not None and layer_pass.has_state:
        share = layer_pass.low_rank.share(layer_pass.query[:, :, -1:], logits, bias)
        return Answer(
            share.slots[0, :, :, 0].mean(1), share.output(slots.values)[0, :, 0], share.state[0, :, :, 0].mean(1)
        )
    mass = probabilities(logits, bias, layer_pass.sinks)[0, :, :, 0]  # (H, G, S)
    return Answer(mass.mean(1), per_table(slots, _given, mass[None])[0].flatten(0, 1))


def _given(slots: Slots, mass: Tensor) -> Tensor:
    """(N, W, G, d) float32: a table's values weighted by `mass` (N, W, G, S or more)."""
    values = slots.values
    blocks = zip(
        mass[..., : values.shape[2]].flatten(0, 1).split(VALUE_BLOCK, -1),
        values.flatten(0, 1).split(VALUE_BLOCK, 1),
        strict=True,
    )
    parts = [share @ part.float() for share, part in blocks]
    return (torch.stack(parts).sum(0) if parts[1:] else parts[0]).unflatten(0, values.shape[:2])


def given_answer(slots: Slots, layer_pass: PassView, output: Tensor) -> Answer:
    """The last query's result as attention gave it (`output` (1, Hq, q, d)) in float32, else evaluated again."""
    mass = layer_pass.kept_mass(slots.valid.shape[2])
    left_out = layer_pass.share_read() is not None
    if mass is not None and (left_out or output.dtype == torch.float32):  # what was not read cannot be evaluated again
        return Answer(mass[0], output[0, :, 0].float())
    return answer(slots, layer_pass, layer_pass.kept_logits(slots.valid.shape[2]))


def mass_columns(slots: Slots, columns: Tensor, shadow: Shadow, given: Answer, truth: Answer) -> dict[str, Tensor]:
    """kept_mass, merged_true_mass, merged_mass, sag, regret, output_error; each (H,). `columns` as `shadow.columns`.

    A low-rank state counts as one merged slot of all dropped tokens: their true mass is merged, not regret.
    """
    owner = shadow.owned()
    heads = truth.mass.shape[0]
    # true mass by owning slot; the last column holds dropped tokens
    by_name = truth.mass.new_zeros(heads, shadow.capacity + 1).scatter_add_(1, owner, truth.mass)
    # Cloned because the columns are kept for many steps, and a view would keep the whole tensor.
    true_mass = by_name.gather(1, columns)
    dropped = by_name[:, shadow.capacity].clone()
    shared = slots.valid[0] & (slots.votes[0] > 1)
    merged_true = (true_mass * shared).sum(-1)
    merged = (given.mass * shared).sum(-1)
    kept = (true_mass * (slots.valid[0] ^ shared)).sum(-1)
    if given.state_mass is not None:
        merged_true = merged_true + dropped
        merged = merged + given.state_mass
        dropped = torch.zeros_like(dropped)
    return {
        "kept_mass": kept,
        "merged_true_mass": merged_true,
        "merged_mass": merged,
        "sag": merged_true - merged,
        "regret": dropped,
        "output_error": relative_error(given.output, truth.output, heads),
    }


def unread_mass(slots: Slots, columns: Tensor, read: Tensor, shadow: Shadow, truth: Answer) -> Tensor:
    """(H,) true mass of tokens in slots that this step left out; `read` (1, H, S): share of query heads that read."""
    by_name = truth.mass.new_zeros(len(truth.mass), shadow.capacity + 1).scatter_add_(1, shadow.owned(), truth.mass)
    return (by_name.gather(1, columns) * slots.valid[0] * (1 - read[0])).sum(-1)


def relative_error(approximate: Tensor, true: Tensor, heads: int) -> Tensor:
    """||approximate - true|| / ||true|| of (Hq, d) outputs, mean over each KV head's group; (H,).

    A zero true output has no relative error unless `approximate` is exact; NaN where no query head of the group has
    one.
    """
    off = (approximate - true).norm(dim=-1)
    size = true.norm(dim=-1)
    error = (off / size).masked_fill((size == 0) & (off > 0), torch.nan).masked_fill(off == 0, 0.0)
    return error.view(heads, -1).nanmean(-1)


def rows_by_position(mass: Tensor, columns: Tensor, shadow: Shadow) -> Tensor:
    """(H, T): scatter each slot's mass to its position, `columns` as from `shadow.columns`."""
    row = mass.new_zeros(mass.shape[0], shadow.capacity + 1)
    return row.scatter_(1, columns, mass)[:, : shadow.tokens]


def lengths(slots: Slots) -> Tensor:
    """(2, H, S) float32 norms of keys and of values. Batch of one."""
    norm = partial(torch.linalg.vector_norm, dim=-1, dtype=torch.float32)
    return torch.stack([measure_slots(slots, name, norm)[0] for name in STATES])


def non_finite(slots: Slots, taken: Tensor | None = None) -> Tensor:
    """(H, S) bool: valid slots with an infinite or NaN key, value or log mass. Batch of one.

    `taken` are their `lengths` if already computed.
    """
    # One sum instead of a test per number: finite exactly when all parts are, except for overflow, which also counts.
    if taken is None:
        keys, values = (measure_slots(slots, name, partial(torch.sum, dim=-1, dtype=torch.float32)) for name in STATES)
        total = keys + values + slots.log_mass
    else:
        total = slots.log_mass + taken.sum(0)
    return (slots.valid & ~torch.isfinite(total))[0]


def growth(before: Tensor, plan: Plan, after: Tensor) -> dict[str, Tensor]:
    """`key_growth` and `value_growth`, (H,) each: largest norm of a slot over that of the longest of its parts.

    From the `lengths` before and after `plan`; 1 where nothing grew. Means of keys never grow, added values and
    rescaled keys may.
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


EVICTED = -1
EDGES_AT_ONCE = 256  # at most; fewer for a short prompt, to keep temporaries small
BLOCKS = 8
Place = tuple[np.ndarray, ...]  # head and slot of each event


def event_columns(
    before: Slots, plan: Plan, after: Slots, answer_before: Answer, answered: Answer, leaving: Tensor
) -> dict[str, np.ndarray]:
    """Columns (one entry per event) of the slots that left one layer: evictions first, then merges. Batch of one.

    `answer_before` and `answered` are the same query's results before and after, `leaving` (H, S) the slots that left.
    """
    evicted = _numpy(leaving).copy()
    merging = None
    parts = []
    if plan.edges is not None:
        edge = _first(plan.edges.active).nonzero()
        source, target = ((edge[0], _first(slots)[edge]) for slots in (plan.edges.source, plan.edges.target))
        merging = _Merging(edge[0], edge, source, target)
        evicted[merging.source] = False
        if len(merging.head):
            parts.append(_merges(before, plan.edges, merging, after, answer_before, answered))
    place = evicted.nonzero()
    if len(place[0]) or not parts:
        position = _first(before.position)
        votes = _first(before.votes)
        mass = _numpy(answer_before.mass)
        parts.insert(0, _evictions(place[0], position[place], votes[place], mass[place]))
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts[1:] else parts[0]
    changed = relative_error(answered.output, answer_before.output, len(evicted))
    columns["perturbation"] = _numpy(changed)[columns["head"]]
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
    before: Slots, edges: Edges, merging: _Merging, after: Slots, answer_before: Answer, answered: Answer
) -> dict[str, np.ndarray]:
    position = _first(before.position)
    votes = _first(before.votes)
    mass = _numpy(answer_before.mass)
    edge = merging.edge
    source = merging.source
    target = merging.target
    count = len(merging.head)
    # The mass of a target's whole group before the step: its own plus that of everything merged into it.
    group = mass.copy()
    mass_after = _numpy(answered.mass)[target]
    np.add.at(group, target, mass[source])
    # Cosine of the keys that each edge joins, in blocks: a prompt has nearly as many edges as keys.
    if edges.similarity is not None:
        similarity = _first(edges.similarity)[edge]
    else:
        size = max(1, min(EDGES_AT_ONCE, before.position.shape[-1] // BLOCKS))
        parts = []
        for ends in zip(edges.source.split(size, -1), edges.target.split(size, -1), strict=True):
            joined, into = (states_at(before, "keys", slots)[0].float() for slots in ends)
            parts.append(torch.cosine_similarity(joined, into, dim=-1))
        similarity = _numpy(torch.cat(parts, -1))[edge]
    return {
        "head": merging.head,
        "kind": np.full(count, edges.kind, dtype=object),
        "source": position[source],
        "target": position[target],
        "similarity": similarity,
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
        arrays = {"score": score[recorded].cpu().numpy(), "kept": stayed[recorded].cpu().numpy() > 0}
        writer.write_arrays(ARRAY, layer_idx, arrays)


def by_position(slots: Slots, of_slots: Tensor, valid: Tensor, tokens: int, absent: float) -> Tensor:
    """Scatter (1, H, S) numbers of the `valid` (H, S) slots to their positions: (H, `tokens`)."""
    row = torch.full((valid.shape[0], tokens + 1), absent, device=valid.device)
    place = torch.where(valid, slots.position[0].long(), tokens)  # an extra column takes invalid slots
    return row.scatter(1, place, of_slots[0].float())[:, :tokens]
