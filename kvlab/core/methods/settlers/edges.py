"""Sums over edges with a common target, and key similarity."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from kvlab.core.contract import KEY_LENGTH, STEP, TINY, Slots, View, gather, key_lengths, round_to_step

Similarity = Literal["dot", "cosine", "l2"]
ROW_BLOCK = 256


def first_of(flag: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """(places of the first `most` true entries of `flag` (B, H, S), distinct, mask of those that are true)."""
    place = (~flag).to(torch.uint8).argsort(stable=True, dim=-1)[..., :most]
    return place, flag.gather(2, place)


def at_rows(rows: Tensor, index: Tensor) -> Tensor:
    """Columns `index` (B, H, E) of (B, H, N, S), (B, H, N, E)."""
    return rows.gather(3, index[:, :, None].expand(-1, -1, rows.shape[2], -1))


def sum_to_target(value: Tensor, target: Tensor, active: Tensor, width: int) -> Tensor:
    """For each edge: sum of `value` (B, H, E[, d]) over all active edges with the same target."""
    masked = torch.where(active if value.dim() == 3 else active[..., None], value, 0)
    if target.shape[-1] == 1:  # decoding: the only edge
        return masked
    index = target if value.dim() == 3 else target[..., None].expand_as(value)
    return value.new_zeros(*value.shape[:2], width, *value.shape[3:]).scatter_add(2, index, masked).gather(2, index)


def votes_without(view: View, votes: Tensor, merged: Tensor) -> Tensor:
    """Votes (B, H, 1) of a head's only source, 0 if it is `merged` (B, H, 1); returns (B, H)."""
    none = view.of_budget(("no votes", votes.dtype), lambda: votes.new_zeros(()))
    return torch.where(merged, none, votes)[..., 0]


def max_to_target(value: Tensor, target: Tensor, active: Tensor, width: int) -> Tensor:
    """For each edge (B, H, E): maximum of `value` over all active edges with the same target."""
    masked = torch.where(active, value, -torch.inf)
    if target.shape[-1] == 1:
        return masked
    room = value.new_full((*value.shape[:2], width), -torch.inf)
    return room.scatter_reduce(2, target, masked, "amax").gather(2, target)


def similarity(left: Tensor, right: Tensor, kind: Similarity) -> Tensor:
    """Similarity (B, H, E, S) float32 of keys (B, H, E, d) and (B, H, S, d); larger is closer (l2 is negated)."""
    left = left.float()
    right = right.float()
    if kind == "l2":
        return -torch.cdist(left, right)
    products = left @ right.transpose(-1, -2)
    if kind == "dot":
        return products
    # Dividing the products writes E numbers per slot; normalized keys would take d.
    lengths = left.norm(dim=-1)[..., None] * right.norm(dim=-1)[..., None, :]
    return products / lengths.clamp_min(TINY)


def oldest_of_nearest(similarity: Tensor, position: Tensor) -> Tensor:
    """Slot (B, H, E) of the largest `similarity` (B, H, E, S); of those equal to within 2^-16, the oldest.

    Cosines of a text that repeats its tokens are equal by construction, and rounding must not decide between them.
    KeepKV's code takes the first of the largest, which is the oldest too.
    """
    # One number for both: 17 bits of a cosine and 31 of a position fit the 53 of a double.
    order = (similarity / STEP).round_().double()
    return order.sub_(position[:, :, None], alpha=2.0**-32).argmax(-1)


def nearest(slots: Slots, index: Tensor, allowed: Tensor, kind: Similarity) -> tuple[Tensor, Tensor]:
    """(similarity, slot), each (B, H, E): the most similar allowed slot of each in `index`, in row blocks.

    The similarity is -inf if no slot is allowed. Of equally similar ones the oldest. With many sources (a prompt), only
    the allowed keys are used, whose number is read on the host.
    """
    sources = gather(slots.keys, index)
    keys = slots.keys
    if index.shape[2] <= ROW_BLOCK:
        similarities = similarity(sources, keys, kind).masked_fill(~allowed[:, :, None], -torch.inf)
        place = oldest_of_nearest(similarities, slots.position)
        return similarities.gather(-1, place[..., None])[..., 0], place
    count = allowed.sum(-1)
    most = int(count.max())
    if most == 0:
        return torch.full(index.shape, -torch.inf, device=keys.device), torch.zeros_like(index)
    # In the order of the text, so that the first of the nearest is the oldest.
    late = torch.iinfo(slots.position.dtype).max
    place = slots.position.masked_fill(~allowed, late).argsort(dim=-1, stable=True)[..., :most]
    keys, there = gather(keys, place), torch.arange(most, device=keys.device) < count[..., None]
    if kind == "cosine":  # the blocks would normalize the same keys repeatedly
        sources = normalize(sources.float(), dim=-1)
        keys = normalize(keys.float(), dim=-1)
        kind = "dot"
    alike = bool(there.all())
    values = []
    indices = []
    for block in sources.split(ROW_BLOCK, 2):
        similarities = similarity(block, keys, kind)
        if not alike:
            similarities.masked_fill_(~there[:, :, None], -torch.inf)
        best = round_to_step(similarities).argmax(-1, keepdim=True)
        values.append(similarities.gather(-1, best)[..., 0])
        indices.append(best[..., 0])
    return torch.cat(values, 2), place.gather(2, torch.cat(indices, 2))


def nearest_slot(
    slots: Slots, index: Tensor, allowed: Tensor, never: Tensor | float = -torch.inf
) -> tuple[Tensor, Tensor]:
    """(cosine, slot), each (B, H, E): the allowed slot with the key most similar to that of each slot in `index`.

    Computed in the dtype of the keys with float32 sums; the cosine of 16-bit keys is recomputed in float32. `never` is
    -inf, as a device scalar if available.
    """
    if index.shape[-1] > ROW_BLOCK:
        return nearest(slots, index, allowed, "cosine")
    lengths, best, place = _best(slots, index, allowed, never)
    if slots.keys.dtype == torch.float32:
        return best, place
    both = gather(slots.keys, index).float()[..., None, :] @ gather(slots.keys, place).float()[..., None]
    exact = both[..., 0, 0] / (gather(lengths, index) * gather(lengths, place))
    return exact.masked_fill(best.isneginf(), -torch.inf), place


def nearest_pair(
    slots: Slots, source: Tensor, allowed: Tensor, never: Tensor | float = -torch.inf
) -> tuple[Tensor, Tensor, Tensor]:
    """As `nearest_slot` for one slot per head, `source` (B, H, 1); every head must have an allowed slot.

    Returns (cosine (B, H, 1), source and nearest (B, H, 2), their keys (B, H, 2, d) float32).
    """
    lengths, best, place = _best(slots, source, allowed, never)
    ends = torch.cat([source, place], -1)
    keys = gather(slots.keys, ends).float()
    if slots.keys.dtype == torch.float32:
        return best, ends, keys
    return (keys[:, :, :1] * keys[:, :, 1:]).sum(-1) / gather(lengths, ends).prod(-1, keepdim=True), ends, keys


def _best(slots: Slots, index: Tensor, allowed: Tensor, never: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
    """(lengths of all keys (B, H, S), largest cosine, its slot); the last two (B, H, E)."""
    lengths = slots.extra[KEY_LENGTH] if KEY_LENGTH in slots.extra else key_lengths(slots.keys)
    # This operand order takes a third of the time on a CPU.
    products = (slots.keys @ gather(slots.keys, index).transpose(-1, -2)).transpose(-1, -2) / lengths[:, :, None]
    cosines = torch.where(allowed[:, :, None], products / gather(lengths, index)[..., None], never)
    place = oldest_of_nearest(cosines, slots.position)
    return lengths, cosines.gather(-1, place[..., None])[..., 0], place
