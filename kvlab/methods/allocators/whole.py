"""Whole numbers of slots that sum to exactly what is asked."""

from __future__ import annotations

import torch
from torch import Tensor

HALVINGS = 200
PARTS = 1e9  # remainders that differ by less are equal: rounding must not choose who gets the odd slot


def whole(wanted: Tensor, total: Tensor | int) -> Tensor:
    """`wanted` (..., n) rounded to int64 so that it sums to `total` (...), which is its own sum but for rounding.

    Largest remainders: what ordinary rounding gives wherever that keeps the total. Order is kept (no share overtakes a
    larger one; of equal shares the first gets the odd slot), and no share moves by a whole slot.
    """
    wanted = wanted.double()
    low = wanted.floor()
    missing = torch.as_tensor(total, device=wanted.device) - low.sum(-1).long()
    rank = ((wanted - low) * PARTS).round().argsort(stable=True, dim=-1, descending=True).argsort(-1)
    return low.long() + (rank < missing[..., None])


def proportional(weights: list[float], total: int, least: int, most: int) -> list[int]:
    """`total` split in proportion to `weights` (not negative), each share between `least` and `most`.

    What a bound takes from one share goes to the others in proportion. Needs n * least <= total <= n * most.
    """
    shares = torch.tensor(weights, dtype=torch.float64)
    # A weight of 0 counts as a billionth of the largest: it grows only once the others are full.
    shares = (shares / shares.max().clamp_min(1e-300)).clamp_min(1e-9)
    low, high = 0.0, 1.0
    while float((shares * high).clamp(least, most).sum()) < total:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = float((shares * middle).clamp(least, most).sum()) >= total
        low, high = (low, middle) if enough else (middle, high)
    return whole((shares * high).clamp(least, most), total).tolist()
