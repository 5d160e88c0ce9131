"""The state of a token at a step, always exactly one."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from kvlab.analysis.lineage.fold import Lineage

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
    first, last = np.full(len(steps), lineage.tokens), np.full(len(steps), -1)
    np.minimum.at(first, since, left)
    np.maximum.at(last, since, left)
    first, last = np.minimum.accumulate(first), np.maximum.accumulate(last)
    none = last < 0
    return np.where(none, 0, first.clip(max=SINKS)), np.where(none, lineage.tokens, last + 1)
