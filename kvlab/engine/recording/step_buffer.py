"""Buffer rows of `steps` and `memory` on the device, so that recording a step never synchronises.

A step leaves small tensors per layer; they are read together when the writer flushes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.contract import Slots, is_constant, is_valid
from kvlab.trace import RunWriter

LEFT = "left"  # evicted or merged; separated when the rows are written
LIVE = "live_slots"
MOST = "max_votes"
GUARDED = "guard_activations"
BUDGET = "budget_slots"
SAVED = "saved_bytes"  # by a packing store
READ = "bytes_read"  # by this decode step, under sparse attention
TABLES = (LIVE, MOST, GUARDED)


@dataclass(frozen=True)
class _Held:
    """One layer's tables as known to the host."""

    physical_slots: int
    slot_bytes: int
    head_bytes: int
    allocated_bytes: int
    codes_bytes: int | None
    scales_bytes: int | None


@dataclass(slots=True)
class _Noted:
    """One layer after one step: columns (H,) each on the device, and host values."""

    step: int
    layer: int
    tokens_seen: int
    peak_bytes: int
    cache_peak_bytes: int
    held: _Held
    budget: Tensor  # (H,)
    columns: dict[str, Tensor]


class PendingRows:
    """Collect each layer's numbers after each step; write them when `writer` flushes."""

    def __init__(self, writer: RunWriter) -> None:
        self.writer = writer
        self.noted: list[_Noted] = []
        self.counted: list[dict[str, Tensor]] = []  # per step: (layers, H) each
        self.guarded: dict[int, np.ndarray | float] = {}  # guard activations per layer up to the last row written
        self._held: dict[int, tuple[object, _Held]] = {}
        writer.before_flush.append(self.write)

    def note(self, step: int, layers: Sequence[CompressedLayer], columns: Sequence[dict[str, Tensor]]) -> None:
        """Queue the numbers of `layers` after `step`: their `columns` (H,) each, and the counts of their tables."""
        self.counted.append(_counted(layers))
        settings = layers[0].settings
        peak = settings.held.peak // settings.texts
        for layer, layer_columns in zip(layers, columns, strict=True):
            assert layer.budget is not None
            host = (step, layer.layer_idx, layer.cumulative_length, layer.peak_bytes, peak, self._tables(layer))
            self.noted.append(_Noted(*host, layer.budget[0], layer_columns))

    def write(self) -> None:
        """Append everything queued; this is where the device is synchronised."""
        noted = self.noted
        counted = self.counted
        if not noted:
            return
        self.noted = []
        self.counted = []
        counts = {name: torch.cat([step[name] for step in counted]).float().cpu().numpy() for name in counted[0]}
        written = 0
        for (names, _), same in groupby(noted, key=lambda row: (tuple(row.columns), row.budget.device)):
            group = list(same)
            # Columns (rows, H) and budgets, read from the device in one transfer.
            stacked = [torch.stack([row.columns[name] for row in group]).float() for name in names]
            stacked.append(torch.stack([row.budget for row in group]).float())
            columns = dict(zip((*names, BUDGET), torch.stack(stacked).cpu().numpy(), strict=True))
            columns |= {name: count[written : written + len(group)] for name, count in counts.items()}
            written += len(group)
            # Rows of `steps`, one per KV head.
            heads = columns[LIVE].shape[1]
            row_values = {
                "step": [row.step for row in group],
                "layer": [row.layer for row in group],
                "tokens_seen": [row.tokens_seen for row in group],
            }
            steps = {name: values for name, values in columns.items() if name not in (LEFT, SAVED, READ)}
            steps |= {name: np.repeat(values, heads).reshape(-1, heads) for name, values in row_values.items()}
            steps["head"] = np.tile(np.arange(heads), (len(group), 1))
            steps["evicted"] = columns[LEFT] - columns["merged"]
            steps[BUDGET] = np.minimum(columns[BUDGET], steps["tokens_seen"])
            since_last = columns[GUARDED].copy()
            for index, row in enumerate(group):
                since_last[index] -= self.guarded.get(row.layer, 0.0)
                self.guarded[row.layer] = columns[GUARDED][index]
            steps[GUARDED] = np.rint(since_last)
            self.writer.append("steps", {name: values.reshape(-1) for name, values in steps.items()})
            # Rows of `memory`, one per layer.
            live = columns[LIVE]
            saved = columns.get(SAVED)
            read = columns.get(READ)
            slots = live.astype(np.int64).sum(1)
            less = np.zeros_like(slots) if saved is None else saved.astype(np.int64).sum(1)
            total = np.full(len(group), np.nan) if read is None else read.astype(np.float64).sum(1)
            sizes = {
                "bytes_read": [None if np.isnan(size) else round(size) for size in total],
                "step": [row.step for row in group],
                "layer": [row.layer for row in group],
                "logical_tokens": [row.tokens_seen for row in group],
                "physical_slots": [row.held.physical_slots for row in group],
                "live_slots": (slots / live.shape[1]).tolist(),
                "live_bytes": [
                    int(count) * row.held.slot_bytes + row.held.head_bytes - int(packed)
                    for count, packed, row in zip(slots, less, group, strict=True)
                ],
                "allocated_bytes": [row.held.allocated_bytes for row in group],
                "codes_bytes": [row.held.codes_bytes for row in group],
                "scales_bytes": [row.held.scales_bytes for row in group],
                "peak_bytes": [row.peak_bytes for row in group],
                "cache_peak_bytes": [row.cache_peak_bytes for row in group],
            }
            self.writer.append("memory", sizes)

    def _tables(self, layer: CompressedLayer) -> _Held:
        """Sizes of a row's tables, recomputed only when a table was created, grown or given head state."""
        tables = layer.tables
        rows = len(layer.lengths)
        index = layer.index_bytes()
        key = (rows, index, *((id(table), table.capacity, len(table.head_state)) for table in tables))
        if layer.layer_idx not in self._held or self._held[layer.layer_idx][0] != key:
            held = _Held(
                max(table.capacity for table in tables),
                tables[0].slot_bytes(),
                (sum(table.head_bytes() for table in tables) + index) // rows,
                layer.table_bytes() // rows,
                *(None if size is None else size // rows for size in layer.packed_bytes()),
            )
            self._held[layer.layer_idx] = (key, held)
        return self._held[layer.layer_idx][1]


def _counted(layers: Sequence[CompressedLayer]) -> dict[str, Tensor]:
    """Counts from the first rows of all layers' tables, (layers, H) each, on the device of the first."""
    tables = [layer.tables[0] for layer in layers if layer.head_index.whole]
    guarded = [layer.guard_activations[:1] for layer in layers]
    alike = {(table.slots.position.shape, table.slots.position.device) for table in tables}
    if len(tables) == len(layers) and len(alike) == 1:
        # Same shapes are read together, as each read of the device takes time.
        valid = is_valid(torch.cat([table.slots.position[:1] for table in tables]))
        votes = [table.slots.votes[:1] for table in tables]
        # Constant columns of one cache are equal: a method that merges nothing has a vote a slot.
        joined = tables[0].slots.with_columns(
            valid=valid, votes=votes[0] if is_constant(votes[0]) else torch.cat(votes)
        )
        return {LIVE: joined.live(), MOST: joined.most_votes(), GUARDED: torch.cat(guarded), **_beside(layers)}
    device = guarded[0].device
    live, most = ([layer.per_head(read)[:1] for layer in layers] for read in (Slots.live, Slots.most_votes))
    counts = zip(TABLES, (live, most, guarded), strict=True)
    return {name: torch.cat([count.to(device) for count in each]) for name, each in counts} | _beside(layers)


def _beside(layers: Sequence[CompressedLayer]) -> dict[str, Tensor]:
    """Bytes per head that a packing store saves against native slots, and those that sparse attention read."""
    settings = layers[0].settings
    device = layers[0].guard_activations.device
    found = {SAVED: [layer.saved_bytes()[:1] for layer in layers]} if settings.store.packs else {}
    if settings.sparse_attention is not None:
        nothing = torch.full_like(layers[0].guard_activations[:1], torch.nan)  # of a prompt
        found[READ] = [nothing if (read := layer.last_read()) is None else read[:1].float() for layer in layers]
    return {name: torch.cat([part.to(device) for part in parts]) for name, parts in found.items()}
