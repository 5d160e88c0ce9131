"""Keys, values and queries of one layer by page slot: what the engine's packed pages do not give back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class PageStates:
    """States of every page slot, as they were when the token was written; `keys` and `values` (slots, H, d).

    vLLM packs keys in pages for the instruction set of the machine, so they are caught when they are written. Queries
    (slots, Hq, d) are no part of an engine's pages; None where they are not kept.
    """

    keys: Tensor
    values: Tensor
    queries: Tensor | None = None

    @classmethod
    def empty(cls, slots: int, key: Tensor, value: Tensor) -> PageStates:
        """Empty states of `slots` page slots for tokens like `key` and `value` (n, H, d)."""
        return cls(key.new_zeros(slots, *key.shape[1:]), value.new_zeros(slots, *value.shape[1:]))

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Note the keys and values (n, H, d) of tokens written to `slots` (n,)."""
        self.keys[slots], self.values[slots] = key[: len(slots)], value[: len(slots)]

    def write_queries(self, slots: Tensor, query: Tensor) -> None:
        """Note the queries (n, Hq, d) of tokens written to `slots` (n,)."""
        if self.queries is None:
            self.queries = query.new_zeros(len(self.keys), *query.shape[1:])
        self.queries[slots] = query

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (1, H, n, d) of `slots` (n,)."""
        return _batch_of_one(self.keys[slots]), _batch_of_one(self.values[slots])

    def read_queries(self, slots: Tensor, new_queries: Tensor) -> Tensor:
        """Queries (1, Hq, n, d) of `slots` (n,), whose last tokens are those of this pass, `new_queries` (m, Hq, d).

        Queries that were not kept are zeros.
        """
        if self.queries is not None:
            return _batch_of_one(self.queries[slots])
        before = new_queries.new_zeros(len(slots) - len(new_queries), *new_queries.shape[1:])
        return _batch_of_one(torch.cat([before, new_queries]))


def _batch_of_one(states: Tensor) -> Tensor:
    return states.transpose(0, 1)[None].contiguous()
