"""The state of a token at a step, always exactly one, and the history of a head as a token-by-step map of states."""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise

import numpy as np
import pandas as pd

from kvlab.analysis.lineage.fold import Lineage
from kvlab.analysis.similarity.float16 import block_edges

SINKS = 4


class State(IntEnum):
    """State of a token after a step.

    `RECENT` is the contiguous run of own slots at the end of the text and `SINK` that at its beginning (at most `SINKS`
    tokens); `KEPT` are own slots in between, the heavy hitters of most methods. Until anything leaves a head, all are
    `KEPT`. `PIVOT` names a slot that absorbed others, `ABSORBED` a token held by such a slot.
    """

    UNSEEN = 0
    SINK = 1
    RECENT = 2
    KEPT = 3
    PIVOT = 4
    ABSORBED = 5
    EVICTED = 6


STATES = tuple(state.name.lower() for state in State)


def states_at(lineage: Lineage, step: int) -> np.ndarray:
    """(tokens,) uint8 `State` of every token after `step`."""
    states = np.full(lineage.tokens, State.UNSEEN, np.uint8)
    states[lineage.birth <= step] = State.KEPT
    sink_stop, recent_start = regions(lineage, step)
    own = states == State.KEPT
    position = np.arange(lineage.tokens)
    states[own & (position >= recent_start)] = State.RECENT
    states[own & (position < sink_stop)] = State.SINK
    states[own & (lineage.absorb <= step)] = State.PIVOT
    states[lineage.leave <= step] = State.ABSORBED
    states[lineage.death <= step] = State.EVICTED
    return states


def regions(lineage: Lineage, step: int) -> tuple[int, int]:
    """Stop of the sinks and start of the recent window after `step`; (0, tokens) before anything has left."""
    left = np.flatnonzero(lineage.leave <= step)
    if not len(left):
        return 0, lineage.tokens
    return min(int(left[0]), SINKS), int(left[-1]) + 1


def regions_at(lineage: Lineage, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`regions` after each of the increasing `steps`, two (steps,) arrays, in one pass over the tokens."""
    left = np.flatnonzero(lineage.leave <= steps.max(initial=-1))
    since = np.searchsorted(steps, lineage.leave[left])
    first = np.full(len(steps), lineage.tokens)
    last = np.full(len(steps), -1)
    np.minimum.at(first, since, left)
    np.maximum.at(last, since, left)
    first = np.minimum.accumulate(first)
    last = np.maximum.accumulate(last)
    none = last < 0
    return np.where(none, 0, first.clip(max=SINKS)), np.where(none, lineage.tokens, last + 1)


MAX_CELLS = 768


def mosaic(lineage: Lineage, max_cells: int = MAX_CELLS) -> pd.DataFrame:
    """uint8 states: a row per block of tokens (its first position), a column per step; at most `max_cells` each.

    A block shows its most common state, or that it holds a sink: the few sinks would never be the most common.
    Too many steps are subsampled evenly.
    """
    rows = block_edges(0, lineage.tokens, max_cells)
    count = len(lineage.steps)
    columns = lineage.steps[np.unique(np.linspace(0, count - 1, min(count, max_cells)).round().astype(int))]
    states = _counts(lineage, rows, columns).argmax(axis=0).astype(np.uint8)
    states = np.array([State.UNSEEN, State.KEPT, State.PIVOT, State.ABSORBED, State.EVICTED], np.uint8)[states]
    sink_stop, recent_start = regions_at(lineage, columns)
    own = states == State.KEPT
    starts = rows[:-1, None]
    states[own & (starts >= recent_start)] = State.RECENT
    states[own & (starts < sink_stop)] = State.SINK
    first = min(SINKS, lineage.tokens)
    alone = _counts(lineage, np.array([*range(first), first, max(first, lineage.tokens)]), columns)[1, :first] > 0
    for token, is_sink in enumerate(alone & (np.arange(first)[:, None] < sink_stop)):
        states[np.searchsorted(rows, token, "right") - 1, is_sink] = State.SINK
    return pd.DataFrame(states, index=pd.Index(rows[:-1], name="position"), columns=pd.Index(columns, name="step"))


def state_counts(lineage: Lineage) -> pd.DataFrame:
    """Tokens in each state after every recorded step, one row per step; rows sum to all tokens."""
    counts = _counts(lineage, np.array([0, lineage.tokens]), lineage.steps)[:, 0, :]
    steps = pd.Index(lineage.steps, name="step")
    names = ["unseen", "own", "pivot", "absorbed", "evicted"]
    return pd.DataFrame(counts.T, index=steps, columns=names).reset_index()


def _counts(lineage: Lineage, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """(states, blocks, steps): each token adds one over the steps of its five spans, computed by cumulative sums."""
    block = np.repeat(np.arange(len(rows) - 1), np.diff(rows))
    own_stop = np.minimum(lineage.leave, np.maximum(lineage.absorb, lineage.birth))
    borders = [np.full(lineage.tokens, -1), lineage.birth, own_stop, lineage.leave, lineage.death]
    shape = len(rows) - 1, len(columns) + 1
    last = int(columns.max(initial=0)) + 1  # a lookup table is ten times as fast as searchsorted
    place = np.searchsorted(columns, np.arange(last + 1))
    begun = [
        np.bincount(block * shape[1] + place[start.clip(0, last)], minlength=shape[0] * shape[1]) for start in borders
    ]
    begun.append(np.zeros_like(begun[0]))  # eviction is final
    changes = np.stack([start - stop for start, stop in pairwise(begun)]).reshape(5, *shape)
    return changes.cumsum(axis=2)[:, :, :-1]
