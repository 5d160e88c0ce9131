"""Join the adjacent slots that are cheapest for their age, so that pools stay small in recent text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


def join_pairs(exists: Tensor, size: Tensor, age: Tensor, need: Tensor, most: int) -> Windows:
    """Groups that leave `need` (B, H) fewer slots, by joining neighbours with the smallest size for their age.

    All else is (B, H, E) by rank, oldest first: `exists` marks the first ones, `size` is the tokens a slot covers,
    `age` the tokens since it. Joining two neighbours costs (sum of their sizes) / (age of the younger). In equilibrium
    sizes are proportional to age, as in an exponential histogram: a slot is as blurred as it is far away. A round joins
    disjoint pairs, including the cheapest; `most` bounds `need` on the host, and 1 takes one round.
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
    """Slots (B, H, E) that join the next one, among every second pair, chosen to include the cheapest."""
    rank = torch.arange(size.shape[-1], device=size.device)
    cost = pad((size[..., :-1] + size[..., 1:]) / age[..., 1:], (0, 1), value=torch.inf)
    cost = cost.masked_fill(rank >= (left - 1)[..., None], torch.inf)
    odd = cost.argmin(-1, keepdim=True) % 2
    cost = cost.masked_fill(rank % 2 != odd, torch.inf)
    place = cost.argsort(dim=-1, stable=True).argsort(-1)
    return (place < need[..., None]) & cost.isfinite()


def _rounds(most: int) -> int:
    """Rounds after which any head has joined `most` pairs; at least most + 1 slots exist."""
    rounds = 0
    while most > 0:
        most, rounds = most - max(most // 2, 1), rounds + 1
    return rounds


@dataclass(frozen=True)
class Windows:
    """Result for the E oldest slots, by rank (B, H, E), oldest first."""

    group: Tensor  # int64: slots of one group become one slot
    passes: Tensor  # float32: how often each was pooled
    plain_weight: Tensor  # float32: its share of its group if every pass took a plain mean


def pool_windows(exists: Tensor, need: Tensor, window: int) -> Windows:
    """Groups that leave at least `need` (B, H) fewer slots, by pooling the oldest in windows of `window`.

    `exists` (B, H, E) marks the first ranks. A pass pools as many whole windows as needed, oldest first; if that was
    not enough, the next pass pools the result. Once fewer than `window` are left, the oldest need + 1 are pooled.
    """
    rank = torch.arange(exists.shape[-1], device=exists.device)
    group = rank.expand(exists.shape).clone()
    passes, weight = torch.zeros(exists.shape, device=exists.device), torch.ones(exists.shape, device=exists.device)
    left = exists.sum(-1)
    for _ in range(_most_passes(exists.shape[-1], window)):
        whole = torch.minimum((need + window - 2) // (window - 1), left // window)
        short = (whole == 0) & (need > 0)
        size = torch.where(short, torch.minimum(need + 1, left), window).clamp_min(1)
        count = torch.where(short, (left > 1).long(), whole)
        pooled = group < (count * size)[..., None]
        passes, weight = passes + pooled, torch.where(pooled, weight / size[..., None], weight)
        removed = count * (size - 1)
        group = torch.where(pooled, group // size[..., None], group - removed[..., None])
        left, need = left - removed, (need - removed).clamp_min(0)
    return Windows(torch.where(exists, group, rank), torch.where(exists, passes, 0.0), weight)


def _most_passes(slots: int, window: int) -> int:
    """Passes after which any number of slots up to `slots` is small enough, or one.

    A pass that is not the last pools every whole window; with at most one window left, the next is the last.
    """
    passes = 0
    while slots > window:
        # The worst case up to `slots`: itself, or the largest number that is one short of whole windows.
        beside = (slots + 1) // window * window - 1
        slots, passes = max(number // window + number % window for number in (slots, beside)), passes + 1
    return passes + (slots > 1)
