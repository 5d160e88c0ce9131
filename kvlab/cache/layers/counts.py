"""What whoever only counts is told of decisions that a CPU's kernel has taken in place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvlab.cache.kernels.cpu import compiled
from kvlab.cache.table.head_index import Streams
from kvlab.methods.core.inplace_work import Work

TOLD = ("merged", "live_slots", "max_votes")


def counts_of(streams: Streams, works: Sequence[Work]) -> np.ndarray:
    """(3, B, H) float32 of a layer, as in `TOLD`: which heads' slots merged (1 or 0), valid slots, the most votes."""
    parts = [_of_table(work) for work in works]
    if streams.whole:
        told = parts[0]
    else:
        told = np.empty((len(TOLD), streams.batch * streams.heads), dtype=np.float32)
        for part, heads in zip(parts, streams.numbers, strict=True):
            told[:, heads] = part
    return told.reshape(-1, streams.batch, streams.heads)


def _of_table(work: Work) -> np.ndarray:
    """(3, N * W) of one table."""
    assert work.merged is not None
    (position, votes), merged, module = work.counted, work.merged.numpy(), compiled()
    if module is not None:
        told: np.ndarray = module.counts(position, position if votes is None else votes, votes is None, merged)
        return told
    valid = position >= 0
    most = (valid if votes is None else votes * valid).max(-1)
    return np.stack([merged, valid.sum(-1), most]).astype(np.float32)
