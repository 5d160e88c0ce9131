"""Shares of a total, rounded to an exact sum."""

import torch
from torch import Tensor

HALVINGS = 200
PARTS = 1e9  # remainders closer than that are ties: rounding must not choose who gets the remaining slot


def round_to_total(wanted: Tensor, total: Tensor | int) -> Tensor:
    """Round `wanted` (..., n) to int64 with sum `total` (...), which is its own sum up to rounding.

    Largest-remainder method: ordinary rounding if that keeps the total. Order is kept (ties: the first gets the extra
    slot), and no share changes by a whole slot.
    """
    wanted = wanted.double()
    low = wanted.floor()
    missing = torch.as_tensor(total, device=wanted.device) - low.sum(-1).long()
    rank = ((wanted - low) * PARTS).round().argsort(stable=True, dim=-1, descending=True).argsort(-1)
    return low.long() + (rank < missing[..., None])


def proportional(weights: list[float], total: int, least: int, most: int) -> list[int]:
    """Split `total` in proportion to non-negative `weights`, each share between `least` and `most`.

    What a bound takes from one share is distributed among the others. Needs n * least <= total <= n * most.
    """
    shares = torch.tensor(weights, dtype=torch.float64)
    # A weight of 0 counts as a billionth of the largest: it grows only after the others are full.
    shares = (shares / shares.max().clamp_min(1e-300)).clamp_min(1e-9)
    low = 0.0
    high = 1.0
    while float((shares * high).clamp(least, most).sum()) < total:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = float((shares * middle).clamp(least, most).sum()) >= total
        low, high = (low, middle) if enough else (middle, high)
    return round_to_total((shares * high).clamp(least, most), total).tolist()
