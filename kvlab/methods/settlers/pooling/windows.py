"""Windows of the oldest slots, pooled until few enough are left, as arithmetic on ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
