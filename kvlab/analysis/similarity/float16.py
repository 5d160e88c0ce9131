"""What runs record in float16, in float32: numpy's own conversion takes several times as long."""

from __future__ import annotations

import math
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


BLOCKS_AT_ONCE = 8


def block_edges(start: int, stop: int, blocks: int) -> np.ndarray:
    """Edges of at most `blocks` nearly equal blocks over [start, stop), each of at least one position."""
    count = max(1, min(blocks, stop - start))
    return np.linspace(start, stop, count + 1).round().astype(np.int64)


def block_means(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Mean of the rows of `values` (positions, ...) in each block, float32; `edges` count from the first row."""
    first, widths = edges - edges[0], np.diff(edges)
    sums = np.empty((len(widths), *values.shape[1:]), np.float32)
    room = np.empty(BLOCKS_AT_ONCE * widths.max(initial=0) * math.prod(values.shape[1:]), np.int32)
    # A few at a time, so that what becomes float32 need not leave the processor.
    for start in range(0, len(widths), BLOCKS_AT_ONCE):
        some = first[start : start + BLOCKS_AT_ONCE + 1]
        rows = as_float32(values[some[0] : some[-1]], room)
        sums[start : start + BLOCKS_AT_ONCE] = np.add.reduceat(rows, some[:-1] - some[0], axis=0)
    return sums / widths.reshape((-1,) + (1,) * (values.ndim - 1)).astype(np.float32)
