"""What runs record in float16, in float32: numpy's own conversion takes several times as long."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

TOKENS_AT_ONCE = 8_192  # whose values stay in a processor's own memory while they are worked on
MANTISSA_BITS = 23 - 10  # by which float32 has more than float16
SIGN_AND_REST = np.array(0x8FFF_E000, np.uint32).view(np.int32)  # without the copies of the sign between them
EXPONENTS = np.float32(2.0 ** (127 - 15))  # float32 counts exponents from another zero
MAGNITUDE, INFINITY = np.int16(0x7FFF), 0x7C00  # all bits but the sign; from here on they stand for no number


def as_float32(recorded: np.ndarray) -> np.ndarray:
    """Exactly what `recorded.astype(np.float32)` is, of any type and shape."""
    if recorded.dtype != np.float16:
        return recorded.astype(np.float32)
    halves = recorded.view(np.int16)
    if (halves & MAGNITUDE).max(initial=0) >= INFINITY:
        return recorded.astype(np.float32)
    bits = halves.astype(np.int32)
    bits <<= MANTISSA_BITS
    bits &= SIGN_AND_REST
    numbers = bits.view(np.float32)
    numbers *= EXPONENTS
    return numbers


def by_blocks(tokens: int) -> Iterator[slice]:
    """The tokens of a text, cut so that what is made of each block need not leave the processor."""
    for start in range(0, tokens, TOKENS_AT_ONCE):
        yield slice(start, min(start + TOKENS_AT_ONCE, tokens))


def weighted_sums(weights: np.ndarray, unit: np.ndarray, norm: np.ndarray) -> np.ndarray:
    """(n, head_dim) float32: the values `unit` (tokens, head_dim) times `norm` (tokens,), by `weights` (n, tokens)."""
    found = np.zeros((len(weights), unit.shape[1]), np.float32)
    for block in by_blocks(len(unit)):
        found += (as_float32(weights[:, block]) * as_float32(norm[block])) @ as_float32(unit[block])
    return found
