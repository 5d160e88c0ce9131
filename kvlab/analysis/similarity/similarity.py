"""Cosine similarity maps at any zoom, from unit vectors, without a tokens x tokens matrix.

The mean cosine of two blocks is the dot product of their mean unit vectors, so a tile costs two block means and one
small product. A mean hides rare similar pairs: mode `max` compares every pair of a small window.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import as_strided

from kvlab.core.errors import UserError
from kvlab.views.frames.float16 import as_float32, block_edges, block_means

Mode = Literal["mean", "max", "raw"]
MAX_PAIR_WINDOW = 2048
ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Tile:
    """A window of a similarity map: values (rows, columns) float32 and the edges of its blocks."""

    values: np.ndarray
    row_edges: np.ndarray
    column_edges: np.ndarray

    def frame(self) -> pd.DataFrame:
        """The values as a frame, named by the first position of each block."""
        rows = pd.Index(self.row_edges[:-1], name="token")
        columns = pd.Index(self.column_edges[:-1], name="other token")
        return pd.DataFrame(self.values, index=rows, columns=columns)


def tile(unit: np.ndarray, rows: tuple[int, int], columns: tuple[int, int], size: int, mode: Mode = "mean") -> Tile:
    """Map of `unit` (tokens, head_dim) over the windows `rows` and `columns`, at most `size` cells per side.

    Raises:
        UserError: `max` or `raw` over more tokens than can be compared pair by pair.
    """
    _check_window(rows, columns, size, mode)
    row_edges = block_edges(*rows, size)
    column_edges = block_edges(*columns, size)
    row_units = unit[slice(*rows)]
    column_units = unit[slice(*columns)]
    if mode == "mean":
        means = block_means(row_units, row_edges)
        values = means @ (means if rows == columns else block_means(column_units, column_edges)).T
    else:
        values = _largest(row_units, column_units, row_edges - rows[0], column_edges - columns[0])
    return Tile(values, row_edges, column_edges)


def allowed_modes(window: int, size: int) -> tuple[Mode, ...]:
    """Modes available for a window of this many tokens."""
    if window <= size:
        return ("raw",)
    return ("mean", "max") if window <= MAX_PAIR_WINDOW else ("mean",)


def _check_window(rows: tuple[int, int], columns: tuple[int, int], size: int, mode: Mode) -> None:
    widest = max(rows[1] - rows[0], columns[1] - columns[0])
    if mode == "max" and widest > MAX_PAIR_WINDOW:
        raise UserError(f"Mode “max” is limited to {MAX_PAIR_WINDOW} tokens: zoom in.")
    if mode == "raw" and widest > size:
        raise UserError(f"Single pairs are limited to {size} tokens: zoom in.")


def _largest(rows: np.ndarray, columns: np.ndarray, row_edges: np.ndarray, column_edges: np.ndarray) -> np.ndarray:
    """Largest cosine of any pair in each block, computed a few rows at a time to bound memory."""
    others = as_float32(columns).T
    by_row = np.empty((len(rows), len(column_edges) - 1), np.float32)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        pairs = as_float32(rows[start : start + ROWS_AT_ONCE]) @ others
        by_row[start : start + ROWS_AT_ONCE] = np.maximum.reduceat(pairs, column_edges[:-1], axis=1)
    return np.maximum.reduceat(by_row, row_edges[:-1], axis=0)


def diagonal_band(unit: np.ndarray, offsets: int = 256, blocks: int = 512) -> pd.DataFrame:
    """Mean cosine of each token with the one `offset` before it: one row per offset (1, 2, ...), one column per block.

    Columns are named by the first position of the block; cells without pairs are NaN.
    """
    tokens = len(unit)
    edges = block_edges(0, tokens, blocks)
    reach = max(0, min(offsets, tokens - 1))
    rows = np.arange(1, reach + 1)
    before = np.zeros((reach, unit.shape[1]), np.float32)  # zero padding
    units = np.concatenate([before, as_float32(unit)])
    sums = np.stack([_diagonal_sums(units, start, stop, reach) for start, stop in pairwise(edges)], axis=1)
    count = edges[1:] - np.maximum(edges[:-1], rows[:, None])
    band = np.where(count > 0, sums / np.maximum(count, 1), np.nan).astype(np.float32)
    return pd.DataFrame(band, index=pd.Index(rows, name="offset"), columns=pd.Index(edges[:-1], name="position"))


def _diagonal_sums(units: np.ndarray, start: int, stop: int, reach: int) -> np.ndarray:
    """(reach,) cosines of the tokens from `start` to `stop` with the one 1, 2, ... before each, summed over the tokens.

    `units` begins `reach` rows before the text. One matrix product computes twice the pairs needed and is still four
    times as fast as vector products.
    """
    found = np.zeros(reach, np.float32)
    for first in range(start, stop, ROWS_AT_ONCE):
        last = min(first + ROWS_AT_ONCE, stop)
        pairs = units[first + reach : last + reach] @ units[first : last + reach].T
        down, right = pairs.strides
        # Row t from its own diagonal's left end: column k is the token `reach` - k before it.
        found += as_strided(pairs, (last - first, reach), (down + right, right)).sum(0)[::-1]
    return found


def neighbour_profile(unit: np.ndarray, token: int, reach: int = 128) -> pd.DataFrame:
    """Cosine of one token with its neighbours: columns offset, position, similarity."""
    start = max(0, token - reach)
    stop = min(len(unit), token + reach + 1)
    similarity = as_float32(unit[start:stop]) @ as_float32(unit[token])
    position = np.arange(start, stop)
    return pd.DataFrame({"offset": position - token, "position": position, "similarity": similarity})


def locality(unit: np.ndarray, near: int = 8) -> dict[str, float]:
    """Mean cosine of tokens at most `near` apart, and of tokens further apart, over all pairs.

    The far sum is the sum over all pairs (from the squared norm of the total) minus the near sum.
    """
    units = as_float32(unit)
    tokens = len(unit)
    offsets = range(1, min(near, tokens - 1) + 1)
    close = sum(float(np.einsum("td,td->", units[offset:], units[:-offset])) for offset in offsets)
    total = units.sum(axis=0, dtype=np.float64)
    itself = float(np.einsum("td,td->", units, units))
    every = (float(total @ total) - itself) / 2
    pairs_near = sum(tokens - offset for offset in offsets)
    pairs_far = tokens * (tokens - 1) // 2 - pairs_near
    return {
        "near": close / pairs_near if pairs_near else float("nan"),
        "far": (every - close) / pairs_far if pairs_far else float("nan"),
    }


def thumbnail(unit: np.ndarray, size: int = 48) -> np.ndarray:
    """(size, size) float32 overview of the whole map by block means."""
    whole = (0, len(unit))
    return tile(unit, whole, whole, size, "mean").values
