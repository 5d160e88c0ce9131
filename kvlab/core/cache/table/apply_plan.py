"""Apply a plan to tensors by gather and scatter; the only place that does, shared by all methods.

Tensors are (B, H, S[, n]), S slots.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from kvlab.core.contract import FREE, KEY_LENGTH, Rotary, Slots, expand_index, gather, is_constant, key_lengths
from kvlab.core.contract.plan import Edges, Plan

FEW_EDGES = 16
# Initial metadata of a new token.
NEW_SLOT: Mapping[str, float] = {"votes": 1, "log_mass": 0.0, "score": 0.0}


def apply(slots: Slots, plan: Plan, rotary: Rotary | None = None) -> Slots:
    """Apply `plan`: targets of merges get new keys, values and metadata, all slots not kept become invalid.

    `rotary` is needed for edges that re-rotate source keys to the target's position before averaging. Changes `slots`
    in place where possible (decoding touches only the changed slots) and returns it.
    """
    if plan.extra:
        slots = slots.with_columns(extra=slots.extra | plan.extra)
    if plan.edges is not None:
        slots = _merge(slots, plan, plan.edges, rotary)
    if plan.log_mass is not None:
        slots = slots.with_columns(log_mass=torch.where(plan.keep, plan.log_mass, slots.log_mass))
    if plan.value_shift is not None:
        index = expand_index(plan.value_shift.slot, slots.values)
        slots.values.scatter_add_(2, index, plan.value_shift.amount.to(slots.values.dtype))
    if plan.new_keys is not None:
        index = expand_index(plan.new_keys.slot, slots.keys)
        slots.keys.scatter_(2, index, plan.new_keys.keys.to(slots.keys.dtype))
        if KEY_LENGTH in slots.extra:
            slots.extra[KEY_LENGTH].copy_(key_lengths(slots.keys))
    return slots.with_columns(valid=plan.keep)


def overwritten_slots(plan: Plan) -> dict[str, Tensor]:
    """Slots (B, H, E) whose `keys` and `values` `apply` may overwrite in place; absent names: none."""
    edges = plan.edges
    shift = plan.value_shift
    new = plan.new_keys
    index: dict[str, list[Tensor]] = {"keys": [], "values": []}
    if edges is not None and edges.target.shape[-1] <= FEW_EDGES:  # more edges create new tensors
        index["keys"] += [edges.target] if edges.key_weight is not None else []
        index["values"].append(edges.target)
    index["keys"] += [] if new is None else [new.slot]
    index["values"] += [] if shift is None else [shift.slot]
    return {name: torch.cat(parts, -1) for name, parts in index.items() if parts}


def grow(slots: Slots, capacity: int) -> Slots:
    """Copy with `capacity` slots per head; the new ones are invalid."""
    width = slots.position.shape[2]
    grown = slots.map(lambda tensor: longer(tensor, capacity - width))
    grown.position[:, :, width:] = FREE
    return grown


def write(slots: Slots, index: Tensor, new: Mapping[str, Tensor | float]) -> None:
    """Overwrite slot `index` (B, H, 1) of every head in place, with a scalar or (B, H, 1[, d]) values per column.

    Columns that are constant for all slots are skipped.
    """
    for name, value in new.items():
        tensor = _tensor(slots, name)
        if is_constant(tensor):
            continue
        where = expand_index(index, tensor)
        if isinstance(value, Tensor):
            tensor.scatter_(2, where, value.to(tensor.dtype))
        else:
            tensor.scatter_(2, where, value)


def _tensor(slots: Slots, name: str) -> Tensor:
    return slots.extra[name] if name in slots.extra else getattr(slots, name)


def _merge(slots: Slots, plan: Plan, edges: Edges, rotary: Rotary | None) -> Slots:
    if edges.harmless:
        # Fast path for one source per head that needs no guard: few operations, all in place.
        ends = torch.cat([edges.source, edges.target], -1) if edges.ends is None else edges.ends
        if edges.key_weight is not None:
            turned = None if rotary is None or edges.turn is None else partial(rotary.turn, by=edges.turn)
            found = gather(slots.keys, ends).float() if edges.end_keys is None else edges.end_keys
            keys = _weighted(found, edges.key_weight, edges.self_key_weight, edges.shares, turned)
            keys = keys if edges.key_scale is None else keys * edges.key_scale[..., None]
            keys = keys if edges.key_shift is None else keys + edges.key_shift
            write(slots, edges.target, {"keys": keys})
            if KEY_LENGTH in slots.extra:
                write(slots, edges.target, {KEY_LENGTH: key_lengths(keys.to(slots.keys.dtype))})
        after = {"votes": edges.votes_after, "log_mass": edges.log_mass_after, "score": edges.score_after}
        values = gather(slots.values, ends).float()
        after["values"] = _weighted(values, edges.value_weight, edges.self_value_weight, edges.shares)
        named = after | (edges.extra_after or {})
        write(slots, edges.target, {name: value for name, value in named.items() if value is not None})
        return slots
    target = edges.target
    if target.shape[-1] > 1:  # inactive edges rewrite a slot that no active one targets: a victim, or slot 0
        leaves = (slots.valid & ~plan.keep).to(torch.int8).argmax(-1, keepdim=True)
        target = torch.where(edges.active, target, leaves)
    keys = slots.keys
    if edges.key_weight is not None:
        assert edges.self_key_weight is not None
        sources = gather(slots.keys, edges.source).float()
        if edges.turn is not None and rotary is not None:
            sources = rotary.turn(sources, edges.turn)
        sources = sources * edges.key_weight[..., None]
        into = _Into(target, edges.active, edges.self_key_weight, edges.key_scale, edges.key_shift)
        keys = _combine(slots.keys, sources, into)
    value_sources = gather(slots.values, edges.source).float() * edges.value_weight[..., None]
    assert edges.self_value_weight is not None
    values = _combine(slots.values, value_sources, _Into(target, edges.active, edges.self_value_weight))
    after = {"votes": edges.votes_after, "log_mass": edges.log_mass_after, "score": edges.score_after}
    for name, value in (after | (edges.extra_after or {})).items():
        if value is not None and not is_constant(tensor := _tensor(slots, name)):
            _put(tensor, target, value, edges.active)
    merged = replace(slots, keys=keys, values=values)
    if edges.key_weight is not None and KEY_LENGTH in merged.extra:
        merged.extra[KEY_LENGTH].copy_(key_lengths(merged.keys))
    return merged


def _weighted(
    states: Tensor,
    weight: Tensor,
    target_weight: Tensor | None,
    shares: bool,
    turn: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """(B, H, 1, d): `weight` of the source and `target_weight` of the target, the two `states` (B, H, 2, d) float32."""
    source = states[:, :, :1]
    target = states[:, :, 1:]
    source = source if turn is None else turn(source)
    if shares or target_weight is None:
        return target.lerp(source, weight[..., None])
    return (target * target_weight[..., None]).addcmul_(source, weight[..., None])


@dataclass(frozen=True)
class _Into:
    """Targets of edges and their new values, each (B, H, E): (own weight x target + sources) x scale + shift."""

    target: Tensor
    active: Tensor
    target_weight: Tensor
    scale: Tensor | None = None
    shift: Tensor | None = None  # (B, H, E, d)


def _combine(states: Tensor, sources: Tensor, into: _Into) -> Tensor:
    """Rewrite the targets in `states` (B, H, S, d), few in place; `sources` (B, H, E, d) are weighted already."""
    target = into.target
    active = into.active
    if target.shape[-1] > FEW_EDGES:
        # Prefill: scatter-adds over the whole table.
        index = expand_index(target, states)
        one = torch.ones(states.shape[:3], device=states.device)
        merged = states.float() * _put(one.clone(), target, into.target_weight, active)[..., None]
        merged.scatter_add_(2, index, torch.where(active[..., None], sources, 0.0))
        if into.scale is not None:
            merged *= _put(one, target, into.scale, active)[..., None]
        if into.shift is not None:
            # Edges of one target carry the same shift, so writing the target's final value equals adding it once.
            shifted = gather(merged, target) + torch.where(active[..., None], into.shift, 0.0)
            merged.scatter_(2, index, shifted)
        return merged.to(states.dtype)
    old = gather(states, target).float()  # (B, H, E, d)
    if target.shape[-1] > 1:  # for each edge, the sum over all active edges with the same target
        same = (target[..., :, None] == target[..., None, :]) & active[..., None, :]
        sources = same.to(sources.dtype) @ torch.where(active[..., None], sources, 0.0)
    merged = old * into.target_weight[..., None] + sources
    merged = merged if into.scale is None else merged * into.scale[..., None]
    merged = merged if into.shift is None else merged + into.shift
    merged = torch.where(active[..., None], merged, old)  # an inactive edge rewrites the old value
    return states.scatter_(2, expand_index(target, states), merged.to(states.dtype))


def _put(tensor: Tensor, target: Tensor, value: Tensor, active: Tensor) -> Tensor:
    """Write `value` in place at the targets of active edges of `tensor` (B, H, S[, n]); one value per target."""
    index = expand_index(target, tensor)
    active = active if tensor.dim() == 3 else active[..., None]
    return tensor.scatter_(2, index, torch.where(active, value.to(tensor.dtype), tensor.gather(2, index)))


class TableSnapshot(Slots):
    """Own copy of metadata; keys and values are the table's, with overwritten slots restored on access."""

    # By name, overwritten slots (B, H, E) and their old states (B, H, E, d).
    written: Mapping[str, tuple[Tensor, Tensor]] = MappingProxyType({})

    @classmethod
    def take(cls, slots: Slots, plan: Plan) -> Slots:
        """Snapshot `slots`; valid until the table changes again."""
        columns = {name: column.clone() for name, column in slots.varying_columns().items() if name not in slots.extra}
        kept = slots.with_columns(**columns, extra={name: column.clone() for name, column in slots.extra.items()})
        over = overwritten_slots(plan)
        if not over:
            return kept
        states = {"keys": slots.keys, "values": slots.values}
        made = object.__new__(cls)
        vars(made).update(vars(kept) | states)
        made.written = {name: (index, gather(states[name], index)) for name, index in over.items()}
        return made

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name not in ("keys", "values") or name not in self.written:
            return value
        index, states = self.written[name]
        return value.scatter(2, expand_index(index, value), states)


def like(mask: Tensor, tensor: Tensor) -> Tensor:
    """Expand `mask` (B, H, S) to broadcast with `tensor` (B, H, S[, n])."""
    return mask if tensor.dim() == 3 else mask[..., None]


def longer(tensor: Tensor, count: int) -> Tensor:
    """Append `count` zero slots."""
    return torch.cat([tensor, tensor.new_zeros(*tensor.shape[:2], count, *tensor.shape[3:])], 2)
