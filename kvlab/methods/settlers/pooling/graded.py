"""Adjacent slots joined where that costs least for their age, so that pools stay small where the text is recent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


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


@dataclass(frozen=True)
class Windows:
    """What became of the E oldest slots, by rank (B, H, E), oldest first."""

    group: Tensor  # int64: the slots of one group become one slot
    passes: Tensor  # float32: how many times each was pooled
    plain_weight: Tensor  # float32: its share of its group if every pass took a plain mean


def pool_windows(exists: Tensor, need: Tensor, window: int) -> Windows:
    """Groups that leave at least `need` (B, H) fewer slots, by pooling the oldest in windows of `window`.

    `exists` (B, H, E): which ranks are there, the first ones. A pass pools as many whole windows as are needed, oldest
    first; if that was not enough the next pass pools what came of it. Once fewer than `window` are left, the oldest
    need + 1 of them are pooled.
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
    """After how many passes any number of slots up to `slots` is as few as was asked for, or one.

    A pass that is not the last pools every whole window; with a window left or less, the next is the last.
    """
    passes = 0
    while slots > window:
        # Of all numbers up to `slots`, what leaves most: itself, or the largest with all but one of a window beside.
        beside = (slots + 1) // window * window - 1
        slots, passes = max(number // window + number % window for number in (slots, beside)), passes + 1
    return passes + (slots > 1)
