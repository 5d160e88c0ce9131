"""Adjacent slots joined where that costs least for their age, so that pools stay small where the text is recent."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvlab.methods.settlers.pooling.windows import Windows


def join_pairs(exists: Tensor, size: Tensor, age: Tensor, need: Tensor, most: int) -> Windows:
    """Groups that leave `need` (B, H) fewer slots, by joining neighbours with the smallest size for their age.

    All else is (B, H, E) by rank, oldest first: `exists` the first ones, `size` tokens a slot stands for, `age` tokens
    since it. Joining two neighbours costs (sum of their sizes) / (age of the younger). Where this is levelled out sizes
    are in proportion to age, as in an exponential histogram: each slot is about as blurred as it is far away. One round
    joins disjoint pairs, the cheapest among them; `most` bounds `need` on the host, and with 1 there is one round.
    """
    rank = torch.arange(exists.shape[-1], device=exists.device)
    group = rank.expand(exists.shape).clone()
    passes, weight = torch.zeros(exists.shape, device=exists.device), torch.ones(exists.shape, device=exists.device)
    size, age = torch.where(exists, size, 0.0), age.float().clamp_min(1)
    left = exists.sum(-1)
    for _ in range(_rounds(most)):
        joins = _cheapest(size, age, left, need)  # with the next younger one
        second = pad(joins[..., :-1], (1, 0))
        pooled = (joins | second).gather(2, group)
        passes, weight = passes + pooled, torch.where(pooled, weight / 2, weight)
        moved = rank - second.cumsum(-1)
        group = moved.gather(2, group)
        size = torch.zeros_like(size).scatter_add(2, moved, size)
        age = torch.full_like(age, torch.inf).scatter_reduce(2, moved, age, "amin")
        removed = second.sum(-1)
        left, need = left - removed, need - removed
    return Windows(torch.where(exists, group, rank), torch.where(exists, passes, 0.0), weight)


def _cheapest(size: Tensor, age: Tensor, left: Tensor, need: Tensor) -> Tensor:
    """(B, H, E) bool: slots that join the next one; every second pair takes part, the cheapest of all among them."""
    rank = torch.arange(size.shape[-1], device=size.device)
    cost = pad((size[..., :-1] + size[..., 1:]) / age[..., 1:], (0, 1), value=torch.inf)
    cost = cost.masked_fill(rank >= (left - 1)[..., None], torch.inf)
    odd = cost.argmin(-1, keepdim=True) % 2
    cost = cost.masked_fill(rank % 2 != odd, torch.inf)
    place = cost.argsort(dim=-1, stable=True).argsort(-1)
    return (place < need[..., None]) & cost.isfinite()


def _rounds(most: int) -> int:
    """After how many rounds any head has joined `most` pairs: the fewest slots that can are one more."""
    rounds = 0
    while most > 0:
        most, rounds = most - max(most // 2, 1), rounds + 1
    return rounds
