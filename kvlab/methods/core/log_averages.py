"""Logs of exponential moving averages: one more query, and the correction for queries not seen."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

NEGLIGIBLE = 1e-8  # beside 1 in float32
BYTE = 2**8 - 1


def note_average(average: Tensor, mass: Tensor, log_mass: Tensor, alpha: float) -> None:
    """One more query, whose attention was `mass` (B, H, S), enters the log averages, in place."""
    new = mass.log().sub_(log_mass).add_(math.log(1 - alpha))
    torch.logaddexp(average.add_(math.log(alpha)), new, out=average)


def corrected(average: Tensor, rows: Tensor, alpha: float) -> Tensor:
    """The bias-corrected log average: average - log(1 - alpha^rows), -inf where no query has looked yet."""
    return average - missing(rows, alpha)


def correction(rows: Tensor, alpha: float) -> Tensor:
    """-log(1 - alpha^rows): what an average over so few queries lacks."""
    return -missing(rows, alpha)


def missing(rows: Tensor, alpha: float) -> Tensor:
    """log(1 - alpha^rows) of counts (B, H, S), of which none is taken for one; looked up where all fit a byte."""
    if fits_byte(alpha):
        return _every_byte(alpha, rows.device).index_select(0, rows.clamp(0, BYTE).long().flatten()).view(rows.shape)
    return _missing(rows.clamp_min(1), alpha)


def fits_byte(alpha: float) -> bool:
    """Whether more queries than a byte counts lack nothing."""
    return alpha**BYTE < NEGLIGIBLE


@lru_cache
def _every_byte(alpha: float, device: torch.device) -> Tensor:
    """(256,) `missing` of the counts 0 to 255."""
    with torch.inference_mode(False):
        return _missing(torch.arange(BYTE + 1, device=device).clamp_min(1), alpha)


def _missing(rows: Tensor, alpha: float) -> Tensor:
    # log(-expm1) is as accurate as log1p(-exp) here, and torch has no vectorised log1p.
    return (rows * math.log(alpha)).expm1_().neg_().log_()
