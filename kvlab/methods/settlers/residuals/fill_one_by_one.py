"""Residual slots filled one token at a time (ZSMerge, Algorithm 1), for all heads at once."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.methods.core.contract import Victims
from kvlab.methods.core.view import Slots
from kvlab.methods.settlers.core.edges import Similarity, at, similarity


def leaving_order(slots: Slots, victims: Victims, eligible: Tensor) -> Tensor:
    """(B, H, E) places in `victims` in the order their slots leave; those that are not active come last.

    Algorithm 1 with the scores as they are at the end: slots that may leave (`eligible`) come in by age, and once there
    are more than can stay, each newcomer pushes out the lowest score so far.
    """
    active, width = victims.active, victims.index.shape[-1]
    position = slots.position.masked_fill(~eligible, torch.iinfo(slots.position.dtype).max)
    entered = at(position.argsort(dim=-1, stable=True).argsort(-1), victims.index).masked_fill(~active, 0)
    stay = (eligible.sum(-1) - active.sum(-1))[..., None]
    # Victims come lowest score first. Those that are not active wait behind all that are, before what is yet to come.
    rank = torch.arange(width, device=entered.device).expand_as(entered).masked_fill(~active, width)
    order = torch.empty_like(entered)
    for step in range(width):
        out = torch.where(entered <= stay + step, rank, width + 1).argmin(-1, keepdim=True)
        order[..., step : step + 1] = out
        rank = rank.scatter(2, out, width + 2)
    return order


def filled(slots: Slots, victims: Victims, order: Tensor, allowed: Tensor, most: int, kind: Similarity) -> Tensor:
    """(B, H, E) the slot each victim ends in: the first `allowed` (B, H) to leave, at most `most`, become residual.

    Each later one joins the residual slot whose key, the mean of all in it so far, is most similar (equations 6 and 7).
    """
    index, active = victims.index.gather(2, order), victims.active.gather(2, order)
    keys, votes = at(slots.keys, index).float(), at(slots.votes, index).float()
    batch, heads, width = index.shape
    most = min(most, width)
    means, counts = keys[:, :, :most].clone(), votes[:, :, :most].clone()
    exists = torch.arange(most, device=index.device) < allowed[..., None]
    target = index.clone()
    for step in range(width):
        key, vote = keys[:, :, step : step + 1], votes[:, :, step : step + 1]
        joins = active[..., step : step + 1] & (step >= allowed)[..., None]
        near = similarity(key, means, kind)[:, :, 0].masked_fill(~exists, -torch.inf).argmax(-1, keepdim=True)
        target[..., step : step + 1] = torch.where(joins, index.gather(2, near), target[..., step : step + 1])
        share = torch.where(joins, vote / (counts.gather(2, near) + vote), 0.0)
        place = near[..., None].expand(batch, heads, 1, means.shape[-1])
        means = means.scatter(2, place, means.gather(2, place).lerp(key, share[..., None]))
        counts = counts.scatter_add(2, near, torch.where(joins, vote, 0.0))
    return torch.empty_like(target).scatter(2, order, target)
