"""Cutting a range of positions into blocks, for pictures that must stay small."""

from __future__ import annotations

import math

import numpy as np

from kvlab.analysis.similarity.float16 import as_float32

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
