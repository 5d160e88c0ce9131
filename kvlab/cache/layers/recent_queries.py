"""The newest queries of a layer, kept between decisions so that slots can be judged anew by them."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.cache.table.slot_table import SlotTable

QUERIES = "recalled_queries"


def recall(
    table: SlotTable, query: Tensor, row_valid: Tensor | None, tokens_seen: Tensor, rows: int
) -> tuple[Tensor, Tensor]:
    """The last `rows` real queries (N, W * G, rows, d) and where they were asked (N, rows); the table keeps them.

    `query` (N, W * G, q, d) are those of this pass, `row_valid` (N, q) which of them are real, `tokens_seen` (N,) with
    them. Rows from before the text are zeros asked at negative positions.
    """
    new = query.unflatten(1, (table.slots.keys.shape[1], -1))
    old = table.head_state.get(QUERIES)
    if old is None:
        old = new.new_zeros(*new.shape[:3], rows, new.shape[4])
    both = torch.cat([old, new], 3)
    if row_valid is not None and new.shape[3] > 1:  # padding goes to the front, the real ones keep their order
        real = torch.cat([row_valid.new_ones(len(row_valid), rows), row_valid], 1)
        order = real.to(torch.uint8).argsort(stable=True, dim=-1)[:, -rows:]
        both = both.gather(3, order[:, None, None, :, None].expand(*both.shape[:3], rows, both.shape[4]))
    # Of a single head the slice is contiguous as it is, and as a view it would keep all queries of the prompt.
    table.note_heads({QUERIES: both[:, :, :, -rows:].clone(memory_format=torch.contiguous_format)})
    age = torch.arange(rows - 1, -1, -1, device=query.device)
    return table.head_state[QUERIES].flatten(1, 2), tokens_seen[:, None] - 1 - age
