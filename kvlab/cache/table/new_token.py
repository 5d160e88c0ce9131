"""One new token per row, split by table on demand."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from torch import Tensor

from kvlab.cache.table.head_index import Streams


class NewToken:
    """`keys`, `values` (B, H, 1, d) at `position` (B,).

    In-place refills read arrays of all heads; other tables get their part.
    """

    def __init__(self, streams: Streams, keys: Tensor, values: Tensor, position: Tensor) -> None:
        self.streams = streams
        self.keys, self.values, self.position = keys, values, position

    def of_table(self, bucket: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values (N, W, 1, d) and positions (N,) of the streams in a bucket."""
        keys, values, position = self._divided
        return keys[bucket], values[bucket], position[bucket]

    @cached_property
    def _divided(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        streams = self.streams
        whole = streams.by_head(self.keys), streams.by_head(self.values), streams.by_row(self.position)
        keys, values, position = (list(parts) for parts in whole)
        return keys, values, position

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Float32 on a CPU only: keys and values (B * H, d), positions (B,)."""
        keys, values = (states.reshape(-1, states.shape[-1]).numpy() for states in (self.keys, self.values))
        return keys, values, self.position.numpy()
