"""Attention inputs besides queries and keys: ALiBi positions, learned sinks, and recalled queries."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvlab.attention.alibi import Alibi, query_positions
from kvlab.cache.table.head_index import Streams
from kvlab.cache.table.slot_table import SlotTable


def placed(
    streams: Streams,
    tables: Sequence[SlotTable],
    slopes: Tensor | None,
    tokens_seen: Tensor,
    rows: int,
    row_valid: Tensor | None,
) -> list[Alibi] | list[None]:
    """ALiBi inputs per table; `slopes` (Hq,) are the model's, None for a model without ALiBi."""
    if slopes is None:
        return [None] * len(tables)
    query_position = query_positions(tokens_seen, rows, row_valid).expand(streams.batch, -1)
    parts = zip(tables, streams.by_head(slopes.expand(streams.batch, -1)), streams.by_row(query_position), strict=True)
    inputs = []
    for table, slope, query in parts:
        position = table.slots.position[:, :, : table.width]
        heads = position.shape[1]
        inputs.append(Alibi(slope.unflatten(1, (heads, -1)), position, query[:, None].expand(-1, heads, -1)))
    return inputs


def sinks_by_head(streams: Streams, tables: Sequence[SlotTable], sinks: Tensor | None) -> list[Tensor] | list[None]:
    """Learned-sink logits (N, W, G) per table; `sinks` (Hq,) are the model's, None for a model without them."""
    if sinks is None:
        return [None] * len(tables)
    parts = zip(tables, streams.by_head(sinks.expand(streams.batch, -1)), strict=True)
    return [part.unflatten(1, (table.slots.keys.shape[1], -1)) for table, part in parts]


QUERIES = "recalled_queries"


def recall(
    table: SlotTable, query: Tensor, row_valid: Tensor | None, tokens_seen: Tensor, rows: int
) -> tuple[Tensor, Tensor]:
    """Return the last `rows` real queries (N, W * G, rows, d) and their positions (N, rows), and keep them in the
    table.

    `query` (N, W * G, q, d) belongs to this pass, `row_valid` (N, q) marks real queries, `tokens_seen` (N,) includes
    them. Rows before the start of the text are zeros at negative positions.
    """
    new = query.unflatten(1, (table.slots.keys.shape[1], -1))
    old = table.head_state.get(QUERIES)
    if old is None:
        old = new.new_zeros(*new.shape[:3], rows, new.shape[4])
    both = torch.cat([old, new], 3)
    if row_valid is not None and new.shape[3] > 1:  # padding moves to the front, real queries keep their order
        real = torch.cat([row_valid.new_ones(len(row_valid), rows), row_valid], 1)
        order = real.to(torch.uint8).argsort(stable=True, dim=-1)[:, -rows:]
        both = both.gather(3, order[:, None, None, :, None].expand(*both.shape[:3], rows, both.shape[4]))
    # With a single head the slice is contiguous already, and as a view it would keep all queries of the prompt alive.
    table.store_head_state({QUERIES: both[:, :, :, -rows:].clone(memory_format=torch.contiguous_format)})
    age = torch.arange(rows - 1, -1, -1, device=query.device)
    return table.head_state[QUERIES].flatten(1, 2), tokens_seen[:, None] - 1 - age
