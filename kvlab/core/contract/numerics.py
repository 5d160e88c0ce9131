"""Numbers that parts share: draws tied to tokens, scores equal by construction, log averages, shares of a total."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

NEGLIGIBLE = 1e-8  # relative to 1 in float32
NEVER_SEEN = -1e4  # replaces log(0) so that arithmetic stays finite
BYTE = 2**8 - 1
HALVINGS = 200
PARTS = 1e9  # remainders closer than that are ties: rounding must not choose who gets the remaining slot


@dataclass(frozen=True)
class TensorFields:
    """Base class of weights and statistics: tensors by name; fields that are None have none."""

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Apply `change` to every tensor."""
        return replace(self, **{name: change(tensor) for name, tensor in self.tensors().items()})


def note_average(average: Tensor, mass: Tensor, log_mass: Tensor, alpha: float) -> None:
    """Update log averages in place with a query of attention `mass` (B, H, S)."""
    new = mass.log().sub_(log_mass).add_(math.log(1 - alpha))
    torch.logaddexp(average.add_(math.log(alpha)), new, out=average)


def missing(rows: Tensor, alpha: float) -> Tensor:
    """What a log average over `rows` (B, H, S) queries lacks: log(1 - alpha^rows), 0 counted as 1.

    The average minus this is corrected for bias. A table lookup if counts fit a byte.
    """
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


# Scores that are equal by construction, whatever the processor: of repeated tokens, of constant windows.
#
# Slots with equal scores leave by age, the oldest first (`Slots.lowest`). That is a rule only if such scores are equal
# to the last bit, which sums in another order are not. So scorers round where equal scores are likely.

STEP = 2.0**-16


def round_to_step(score: Tensor, step: float = STEP) -> Tensor:
    """The nearest multiples of `step`, a power of two."""
    return (score / step).round() * step


def round_relatively(score: Tensor) -> Tensor:
    """`score` >= 0 to within .02 %: its logarithm to base 2 in multiples of 2^-12."""
    # In double precision, since a vector of floats and the few numbers behind it are not raised alike to the last bit.
    return round_to_step(score.log2(), 2.0**-12).double().exp2().float()


_MASK = (1 << 64) - 1


def _signed(number: int) -> int:
    number &= _MASK
    return number - (1 << 64) if number >> 63 else number


MIX = _signed(0x9E3779B97F4A7C15), _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def head_streams(seed: int, heads: int, device: torch.device) -> Tensor:
    """Start (H, 1) int64 of each head's random stream."""
    return torch.arange(heads, device=device)[:, None] * MIX[1] + stream_start(seed)


def stream_start(seed: int) -> int:
    """Start of head 0's stream; head h starts `h * MIX[1]` later, in 64 bits."""
    return _signed(seed * MIX[2])


def uniform_draws(seed: int, position: Tensor, streams: Tensor | None = None) -> Tensor:
    """Uniform numbers in [0, 1) for the tokens at `position` (B, H, E), float32, one stream per head.

    Counter-based (SplitMix64 of seed, head and position): a token draws the same number in any batch and at any time,
    so runs are reproducible row by row. `streams`: precomputed `head_streams`.
    """
    streams = head_streams(seed, position.shape[1], position.device) if streams is None else streams
    state = torch.add(streams, position.long(), alpha=MIX[0])
    for shift, factor in ((30, MIX[1]), (27, MIX[2])):
        state = (state ^ _shift_right(state, shift)) * factor
    state = state ^ _shift_right(state, 31)
    return _shift_right(state, 40).float() / 2**24


def gumbel_draws(seed: int, position: Tensor) -> Tensor:
    """Gumbel noise (B, H, E) float32 of the same draws: the k largest of log weight + noise are k drawn by weight."""
    half_a_step = 2.0**-26  # no draw is 0, which has no logarithm
    return -(-(uniform_draws(seed, position) + half_a_step).log()).log()


def _shift_right(state: Tensor, by: int) -> Tensor:
    """Logical right shift."""
    return (state >> by) & ((1 << (64 - by)) - 1)


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
