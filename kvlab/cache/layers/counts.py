"""Counts of valid and merged slots per head, reported to light observers after an in-place CPU decision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvlab.cache.kernels.cpu import compiled
from kvlab.cache.table.head_index import Streams
from kvlab.methods.core.inplace_work import Work

COUNT_NAMES = ("merged", "live_slots", "max_votes")


def counts_of(streams: Streams, works: Sequence[Work]) -> np.ndarray:
    """Counts (3, B, H) float32 of a layer, as in `COUNT_NAMES`: merged (1 or 0), valid slots, most votes per slot."""
    parts = [_of_table(work) for work in works]
    if streams.whole:
        counts = parts[0]
    else:
        counts = np.empty((len(COUNT_NAMES), streams.batch * streams.heads), dtype=np.float32)
        for part, heads in zip(parts, streams.numbers, strict=True):
            counts[:, heads] = part
    return counts.reshape(-1, streams.batch, streams.heads)


def _of_table(work: Work) -> np.ndarray:
    """Counts (3, N * W) of one table."""
    (position, votes), module = work.counted, compiled()
    assert work.merged is not None and module is not None
    counts: np.ndarray = module.counts(
        position, position if votes is None else votes, votes is None, work.merged.numpy()
    )
    return counts
