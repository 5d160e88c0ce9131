"""Fast float16 to float32 conversion and block sums; numpy's own conversion is several times slower."""

import math
from collections.abc import Iterator

import numpy as np

TOKENS_AT_ONCE = 8_192  # a block of values fits the CPU cache
MANTISSA_BITS = 23 - 10  # extra mantissa bits of float32
SIGN_AND_REST = np.array(0x8FFF_E000, np.uint32).view(np.int32)  # clears the sign-extension bits
EXPONENTS = np.float32(2.0 ** (127 - 15))  # difference of the exponent biases
LARGEST = float(np.finfo(np.float16).max)  # larger values come from infinity and NaN patterns


def as_float32(recorded: np.ndarray, buffer: np.ndarray | None = None) -> np.ndarray:
    """Equal to `recorded.astype(np.float32)` for any dtype and shape.

    `buffer`, (n,) int32 with n at least the number of values, is overwritten if given, so that a loop over blocks
    allocates no memory: first-touch page faults cost more than the arithmetic.
    """
    if recorded.dtype != np.float16:
        return recorded.astype(np.float32)
    bits = np.empty(recorded.shape, np.int32) if buffer is None else buffer[: recorded.size].reshape(recorded.shape)
    bits[...] = recorded.view(np.int16)
    bits <<= MANTISSA_BITS
    bits &= SIGN_AND_REST
    numbers = bits.view(np.float32)
    numbers *= EXPONENTS
    if max(numbers.max(initial=0), -numbers.min(initial=0)) > LARGEST:
        return recorded.astype(np.float32)
    return numbers


def token_blocks(tokens: int) -> Iterator[slice]:
    """Slices of the token axis, sized for the CPU cache."""
    for start in range(0, tokens, TOKENS_AT_ONCE):
        yield slice(start, min(start + TOKENS_AT_ONCE, tokens))


def weighted_sums(weights: np.ndarray, unit: np.ndarray, norm: np.ndarray) -> np.ndarray:
    """(n + 1, head_dim) float32: sums of the values `unit` (tokens, head_dim) times `norm` (tokens,).

    Row i is weighted by `weights` (n, tokens); the last row is the unweighted sum.
    """
    count = len(weights)
    head_dim = unit.shape[1]
    sums_out = np.zeros((count + 1, head_dim), np.float32)
    for_weights = np.empty(TOKENS_AT_ONCE * count, np.int32)
    for_unit = np.empty(TOKENS_AT_ONCE * head_dim, np.int32)
    by = np.empty((count + 1, TOKENS_AT_ONCE), np.float32)
    for block in token_blocks(len(unit)):
        lengths = as_float32(norm[block])
        now = by[:, : len(lengths)]
        np.multiply(as_float32(weights[:, block], for_weights), lengths, out=now[:-1])
        now[-1] = lengths
        sums_out += now @ as_float32(unit[block], for_unit)
    return sums_out


BLOCKS_AT_ONCE = 8


def block_edges(start: int, stop: int, blocks: int) -> np.ndarray:
    """Edges of at most `blocks` nearly equal blocks over [start, stop), each of at least one position."""
    count = max(1, min(blocks, stop - start))
    return np.linspace(start, stop, count + 1).round().astype(np.int64)


def block_means(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Mean of the rows of `values` (positions, ...) in each block, float32; `edges` count from the first row."""
    first = edges - edges[0]
    widths = np.diff(edges)
    sums = np.empty((len(widths), *values.shape[1:]), np.float32)
    buffer = np.empty(BLOCKS_AT_ONCE * widths.max(initial=0) * math.prod(values.shape[1:]), np.int32)
    # A few blocks at a time, so that the float32 copy stays in the CPU cache.
    for start in range(0, len(widths), BLOCKS_AT_ONCE):
        some = first[start : start + BLOCKS_AT_ONCE + 1]
        rows = as_float32(values[some[0] : some[-1]], buffer)
        sums[start : start + BLOCKS_AT_ONCE] = np.add.reduceat(rows, some[:-1] - some[0], axis=0)
    return sums / widths.reshape((-1,) + (1,) * (values.ndim - 1)).astype(np.float32)
