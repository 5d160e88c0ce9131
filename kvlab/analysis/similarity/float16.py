"""What runs record in float16, in float32: numpy's own conversion takes several times as long."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

TOKENS_AT_ONCE = 8_192  # whose values stay in a processor's own memory while they are worked on
MANTISSA_BITS = 23 - 10  # by which float32 has more than float16
SIGN_AND_REST = np.array(0x8FFF_E000, np.uint32).view(np.int32)  # without the copies of the sign between them
EXPONENTS = np.float32(2.0 ** (127 - 15))  # float32 counts exponents from another zero
LARGEST = float(np.finfo(np.float16).max)  # beyond it are only the patterns of float16 that stand for no number


def as_float32(recorded: np.ndarray, room: np.ndarray | None = None) -> np.ndarray:
    """Exactly what `recorded.astype(np.float32)` is, of any type and shape.

    `room`, (n,) int32 with n at least the numbers that are asked for, is written over where given, so that a loop over
    blocks asks for no new memory: pages that a process touches first cost more than the arithmetic.
    """
    if recorded.dtype != np.float16:
        return recorded.astype(np.float32)
    bits = np.empty(recorded.shape, np.int32) if room is None else room[: recorded.size].reshape(recorded.shape)
    bits[...] = recorded.view(np.int16)
    bits <<= MANTISSA_BITS
    bits &= SIGN_AND_REST
    numbers = bits.view(np.float32)
    numbers *= EXPONENTS
    if max(numbers.max(initial=0), -numbers.min(initial=0)) > LARGEST:
        return recorded.astype(np.float32)
    return numbers


def by_blocks(tokens: int) -> Iterator[slice]:
    """The tokens of a text, cut so that what is made of each block need not leave the processor."""
    for start in range(0, tokens, TOKENS_AT_ONCE):
        yield slice(start, min(start + TOKENS_AT_ONCE, tokens))


def room_for(vectors: int) -> np.ndarray:
    """`room` for a block of as many numbers a token."""
    return np.empty(TOKENS_AT_ONCE * vectors, np.int32)


def sums_by(weights: np.ndarray, unit: np.ndarray, norm: np.ndarray) -> np.ndarray:
    """(n + 1, head_dim) float32: the values `unit` (tokens, head_dim) times `norm` (tokens,), summed.

    By `weights` (n, tokens), and in the last row all of them as they are.
    """
    count, head_dim = len(weights), unit.shape[1]
    found = np.zeros((count + 1, head_dim), np.float32)
    for_weights, for_unit = room_for(count), room_for(head_dim)
    by = np.empty((count + 1, TOKENS_AT_ONCE), np.float32)
    for block in by_blocks(len(unit)):
        lengths = as_float32(norm[block])
        now = by[:, : len(lengths)]
        np.multiply(as_float32(weights[:, block], for_weights), lengths, out=now[:-1])
        now[-1] = lengths
        found += now @ as_float32(unit[block], for_unit)
    return found
