"""Logs of exponential moving averages: update, and correction for unseen queries."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

NEGLIGIBLE = 1e-8  # relative to 1 in float32
NEVER_SEEN = -1e4  # replaces log(0) so that arithmetic stays finite
BYTE = 2**8 - 1


def note_average(average: Tensor, mass: Tensor, log_mass: Tensor, alpha: float) -> None:
    """Update log averages in place with a query of attention `mass` (B, H, S)."""
    new = mass.log().sub_(log_mass).add_(math.log(1 - alpha))
    torch.logaddexp(average.add_(math.log(alpha)), new, out=average)


def correct_bias(average: Tensor, rows: Tensor, alpha: float) -> Tensor:
    """Bias-corrected log average: average - log(1 - alpha^rows), -inf before the first query."""
    return average - missing(rows, alpha)


def correction(rows: Tensor, alpha: float) -> Tensor:
    """-log(1 - alpha^rows): what an average over few queries lacks."""
    return -missing(rows, alpha)


def missing(rows: Tensor, alpha: float) -> Tensor:
    """log(1 - alpha^rows) of counts (B, H, S), 0 counted as 1; a table lookup if counts fit a byte."""
    if fits_byte(alpha):
        return _every_byte(alpha, rows.device).index_select(0, rows.clamp(0, BYTE).long().flatten()).view(rows.shape)
    return _missing(rows.clamp_min(1), alpha)


def fits_byte(alpha: float) -> bool:
    """Whether the correction is negligible beyond 255 queries."""
    return alpha**BYTE < NEGLIGIBLE


@lru_cache
def _every_byte(alpha: float, device: torch.device) -> Tensor:
    """`missing` of the counts 0 to 255."""
    with torch.inference_mode(False):
        return _missing(torch.arange(BYTE + 1, device=device).clamp_min(1), alpha)


def _missing(rows: Tensor, alpha: float) -> Tensor:
    # log(-expm1) is as accurate as log1p(-exp) here, and torch has no vectorized log1p.
    return (rows * math.log(alpha)).expm1_().neg_().log_()
