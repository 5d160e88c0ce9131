"""What a model gives each query head beside queries: with ALiBi where queries and slots stand, and learned sinks."""

from __future__ import annotations

from collections.abc import Sequence

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
    """What ALiBi needs to know of each table; `slopes` (Hq,) are the model's, None for a model without ALiBi."""
    if slopes is None:
        return [None] * len(tables)
    asked = query_positions(tokens_seen, rows, row_valid).expand(streams.batch, -1)
    parts = zip(tables, streams.by_head(slopes.expand(streams.batch, -1)), streams.by_row(asked), strict=True)
    return [_of_table(table, *part) for table, *part in parts]


def _of_table(table: SlotTable, slopes: Tensor, asked: Tensor) -> Alibi:
    position = table.slots.position[:, :, : table.width]
    heads = position.shape[1]
    return Alibi(slopes.unflatten(1, (heads, -1)), position, asked[:, None].expand(-1, heads, -1))


def sinks_by_head(streams: Streams, tables: Sequence[SlotTable], sinks: Tensor | None) -> list[Tensor] | list[None]:
    """The logits (N, W, G) of learned sinks for each table; `sinks` (Hq,) are the model's, None for one without."""
    if sinks is None:
        return [None] * len(tables)
    parts = zip(tables, streams.by_head(sinks.expand(streams.batch, -1)), strict=True)
    return [part.unflatten(1, (table.slots.keys.shape[1], -1)) for table, part in parts]
