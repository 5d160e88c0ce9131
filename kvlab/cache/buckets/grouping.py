"""Which streams share a table: the fewest groups of similar length that waste little."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def fewest_groups(lengths: Sequence[int], most: float) -> list[list[int]]:
    """Indices into `lengths`, split into the fewest groups whose padded total is at most `most` times the true one.

    Every member of a group takes as much room as the longest. Groups are contiguous in order of length, which no other
    split can beat; longest group first, members in their given order. Raises ValueError for `most` below 1.
    """
    if most < 1:
        raise ValueError(f"A table takes at least what is in it: {most} times that cannot be had.")
    order = np.argsort(-np.asarray(lengths), kind="stable")
    falling = np.asarray(lengths)[order]
    allowed = most * falling.sum()
    # least[n]: the smallest padded total of the first n streams in one group; then in two, three, ...
    counts = np.arange(len(falling) + 1)
    least = np.append(0.0, counts[1:] * float(falling[0]))
    starts: list[np.ndarray] = [np.zeros(len(falling) + 1, dtype=np.int64)]
    while least[-1] > allowed:
        # A last group from `start` (row) to `end` (column) takes the length of its first member for each.
        last = (counts[None] - counts[:-1, None]) * falling[:, None]
        total = np.where(last >= 0, least[:-1, None] + last, np.inf)
        starts.append(total.argmin(0))
        least = total.min(0)
    return _follow(starts, order)


def _follow(starts: list[np.ndarray], order: np.ndarray) -> list[list[int]]:
    """The groups, found from the end backwards."""
    groups, end = [], len(order)
    for start in reversed(starts):
        first = int(start[end])
        groups.append(sorted(order[first:end].tolist()))
        end = first
    return groups[::-1]
