"""What a layer's queries have in common: their mean before rotation, their lengths, and their main direction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class QueryStatistics:
    """Statistics of one layer's queries over some text.

    `mean` (Hq, d): mean query before rotation, without the factor of YaRN; `length` (Hq, f): mean length of each of its
    f rotated pairs of coordinates. `direction` (H, d): first right singular vector of the queries as they attend
    (rotated), mean over the group, of unit length; it points to the side on which most queries are.
    """

    mean: Tensor
    length: Tensor
    direction: Tensor

    def to(self, device: torch.device) -> QueryStatistics:
        """The statistics on a device, copied there once, so that a decode step waits for no copy."""
        return _copied(self, device)


@lru_cache(maxsize=512)
def _copied(known: QueryStatistics, device: torch.device) -> QueryStatistics:
    return QueryStatistics(*(tensor.to(device) for tensor in vars(known).values()))


@lru_cache(maxsize=512)
def random_statistics(query_heads: int, heads: int, width: int, pairs: int, layer: int) -> QueryStatistics:
    """Random statistics determined by the layer, for tests and timing."""
    source = torch.Generator().manual_seed(layer)
    mean = torch.randn(query_heads, width, generator=source)
    length = 1 + mean.abs().amax(-1, keepdim=True).expand(-1, pairs)  # no shorter than the mean
    direction = torch.nn.functional.normalize(torch.randn(heads, width, generator=source), dim=-1)
    return QueryStatistics(mean, 2 * length, direction)
