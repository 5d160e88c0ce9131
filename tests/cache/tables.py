"""Whether two caches hold the same."""

from __future__ import annotations

import torch

from kvlab.core.cache import CompressedCache


def same_tables(ours: CompressedCache, theirs: CompressedCache, close: float = 1e-4) -> None:
    for our, their in zip(ours.compressed_layers(), theirs.compressed_layers(), strict=True):
        assert our.slots is not None and their.slots is not None
        there = our.slots.valid
        assert (there == their.slots.valid).all()
        columns = {**our.slots.metadata(), "keys": our.slots.keys, "values": our.slots.values}
        for name, column in columns.items():
            other = getattr(their.slots, name) if name in vars(their.slots) else their.slots.extra[name]
            if name != "score" or "ema" not in columns:  # that one is worked out when it is wanted
                torch.testing.assert_close(column[there], other[there], rtol=close, atol=close, msg=name)
        torch.testing.assert_close(our.evicted_votes, their.evicted_votes)
        for name, state in our.buckets[0].table.head_state.items():
            torch.testing.assert_close(state, their.buckets[0].table.head_state[name], rtol=close, atol=close)
