"""The history of a head as a token-by-step map of states."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd

from kvlab.analysis.lineage.fold import Lineage
from kvlab.analysis.lineage.states import State, regions_at
from kvlab.analysis.similarity.float16 import block_edges

MAX_CELLS = 768


def mosaic(lineage: Lineage, max_cells: int = MAX_CELLS) -> pd.DataFrame:
    """uint8 states: one row per block of tokens (named by its first position), one column per step; at most `max_cells`
    each.

    A block shows its most common state. Too many steps are subsampled evenly.
    """
    rows = block_edges(0, lineage.tokens, max_cells)
    columns = lineage.steps[_evenly(len(lineage.steps), max_cells)]
    states = _counts(lineage, rows, columns).argmax(axis=0).astype(np.uint8)
    states = np.array([State.UNSEEN, State.KEPT, State.PIVOT, State.ABSORBED, State.EVICTED], np.uint8)[states]
    _mark_regions(states, lineage, rows[:-1], columns)
    return pd.DataFrame(states, index=pd.Index(rows[:-1], name="position"), columns=pd.Index(columns, name="step"))


def state_counts(lineage: Lineage) -> pd.DataFrame:
    """Tokens in each state after every recorded step, one row per step; rows sum to all tokens."""
    counts = _counts(lineage, np.array([0, lineage.tokens]), lineage.steps)[:, 0, :]
    return pd.DataFrame(
        counts.T, index=pd.Index(lineage.steps, name="step"), columns=["unseen", "own", "pivot", "absorbed", "evicted"]
    ).reset_index()


def _counts(lineage: Lineage, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """(states, blocks, steps): each token adds one over the steps of its five spans, computed by cumulative sums."""
    block = np.repeat(np.arange(len(rows) - 1), np.diff(rows))
    own_stop = np.minimum(lineage.leave, np.maximum(lineage.absorb, lineage.birth))
    borders = [np.full(lineage.tokens, -1), lineage.birth, own_stop, lineage.leave, lineage.death]
    shape = len(rows) - 1, len(columns) + 1
    last = int(columns.max(initial=0)) + 1  # a lookup table is ten times as fast as searchsorted
    place = np.searchsorted(columns, np.arange(last + 1))
    begun = [np.bincount(block * shape[1] + place[start.clip(0, last)], minlength=shape[0] * shape[1])
             for start in borders]  # fmt: skip
    begun.append(np.zeros_like(begun[0]))  # eviction is final
    changes = np.stack([start - stop for start, stop in pairwise(begun)]).reshape(5, *shape)
    return changes.cumsum(axis=2)[:, :, :-1]


def _mark_regions(states: np.ndarray, lineage: Lineage, starts: np.ndarray, columns: np.ndarray) -> None:
    sink_stop, recent_start = regions_at(lineage, columns)
    own = states == State.KEPT
    states[own & (starts[:, None] >= recent_start)] = State.RECENT
    states[own & (starts[:, None] < sink_stop)] = State.SINK


def _evenly(count: int, limit: int) -> np.ndarray:
    return np.arange(count) if count <= limit else np.unique(np.linspace(0, count - 1, limit).round().astype(int))
