"""Regroup head sets into tables that fit their valid slots, and free the rest."""

from collections.abc import Sequence, Set
from copy import copy
from operator import itemgetter

import numpy as np

from kvlab.core.cache.buckets.bucket import Bucket
from kvlab.core.cache.settings import LayerSettings
from kvlab.core.cache.table.head_index import HeadIndex
from kvlab.core.cache.table.packed_table import PackedTable
from kvlab.core.cache.table.slot_table import SlotTable
from kvlab.core.contract.rotary import Rotary
from kvlab.core.table_growth import GROWTH, room_to_grow

# Together with growth space at most 1.035 bytes allocated per live byte, apart from one block per head, which is 2 % of
# 200 slots.
MOST_PADDING = 1.035 / (1 + 1 / GROWTH)


def compact_buckets(
    head_index: HeadIndex,
    buckets: list[Bucket],
    settings: LayerSettings,
    rotary: Rotary | None,
    decided: Set[int] | None = None,
) -> tuple[HeadIndex, list[Bucket]]:
    """Move valid slots into compact tables with space to grow; reads lengths on the host.

    A single bucket is split into the fewest buckets whose padding stays within `MOST_PADDING`; later the buckets stay
    as they are, each as long as its longest head. Packed tables change only where rows have `decided` (default: all),
    because moving slots encodes them again.
    """
    lengths = [bucket.table.live().tolist() for bucket in buckets]  # [bucket][head set][head]
    if head_index.whole:
        split = _split(head_index, buckets[0], lengths[0], settings)
        if not split.whole:
            bucket = buckets[0]
            assert bucket.head_budgets is not None
            order = bucket.table.slots.with_columns(valid=bucket.table.valid()).in_text()
            flat = [length for head_set in lengths[0] for length in head_set]
            budgets = bucket.head_budgets.slots.flatten().tolist()
            parts = []
            for number, members in enumerate(split.members):
                heads = [member * split.width + head for member in members for head in range(split.width)]
                head_lengths = [flat[head] for head in heads]
                room = _room(settings, max(budgets[head] for head in heads), max(head_lengths))
                table = bucket.table.compacted(order, room, head_lengths, members, split.width)
                part = bucket.part(table, lambda tensor: split.by_head(tensor)[number].clone())  # noqa: B023  called at once
                part.table = _stored(table, settings, rotary)  # from the head state of these head sets
                parts.append(part)
            return split, parts
    for bucket, bucket_lengths, members in zip(buckets, lengths, head_index.members, strict=True):
        if settings.store.packs and decided is not None and decided.isdisjoint(map(head_index.row, members)):
            continue
        flat = [length for head_set in bucket_lengths for length in head_set]
        most = None if bucket.head_budgets is None else bucket.head_budgets.largest
        order = bucket.table.slots.with_columns(valid=bucket.table.valid()).in_text()
        packed = bucket.table.compacted(order, _room(settings, most, max(flat)), flat)
        bucket.table = _stored(packed, settings, rotary)
        bucket.index = None
    return head_index, buckets


def part_rows(head_index: HeadIndex, buckets: list[Bucket], counts: Sequence[int]) -> tuple[HeadIndex, list[Bucket]]:
    """Give rows with unlike `counts` (B,) tables of their own, so that each goes on as it would alone."""
    members: list[list[int]] = []
    parts: list[Bucket] = []
    for bucket, head_sets in zip(buckets, head_index.members, strict=True):
        alike: dict[int, list[int]] = {}
        for place, head_set in enumerate(head_sets):
            alike.setdefault(counts[head_index.row(head_set)], []).append(place)
        members += [[head_sets[place] for place in places] for places in alike.values()]
        if len(alike) == 1:
            parts.append(bucket)
            continue
        for places in alike.values():  # a bucket of these head sets alone, with its own tensors
            table = copy(bucket.table)
            table.map_rows(itemgetter(places))
            parts.append(bucket.part(table, itemgetter(places)))
    if len(parts) == len(buckets):
        return head_index, buckets
    device = buckets[0].evicted_votes.device
    return HeadIndex(head_index.batch, head_index.heads, head_index.width, members, device), parts


def _split(head_index: HeadIndex, bucket: Bucket, lengths: list[list[int]], settings: LayerSettings) -> HeadIndex:
    """Head sets of single heads if heads of a row differ and the method decides per head; else whole rows."""
    assert bucket.head_budgets is not None
    budgets = bucket.head_budgets.slots.tolist()
    width = head_index.heads
    joined = settings.sparse_attention is not None and settings.sparse_attention.capabilities.across_heads
    can = settings.pipeline.can
    across_heads = joined or any(part.across_heads for part in (can.score, can.select, can.settle))
    if not across_heads and any(len(set(row)) > 1 for row in lengths):
        lengths = [[head] for row in lengths for head in row]
        budgets = [[head] for row in budgets for head in row]
        width = 1
    now = [max(head_set) for head_set in lengths]
    # While decoding, heads may fill up to their budgets, so heads of very different budgets must not share a table.
    later = [max(head_set) for head_set in budgets] if settings.pipeline.decode else [1] * len(now)
    # Head sets that may share tables: all, or those of equal rows if slots are packed. When a table packs, and what,
    # depends on its longest head, so a row in a table with others would not be packed as it is alone.
    apart = head_index.heads // width
    equal: dict[str, list[int]] = {}
    for first in range(0, len(lengths), apart):
        row = range(first, first + apart)
        kind = str([(lengths[head_set], budgets[head_set]) for head_set in row]) if settings.store.packs else ""
        equal.setdefault(kind, []).extend(row)
    groups = []
    for sharing in equal.values():
        for places in fewest_groups([later[head_set] for head_set in sharing], MOST_PADDING):
            alike = [sharing[place] for place in places]
            similar = fewest_groups([now[head_set] for head_set in alike], MOST_PADDING)
            groups += [[alike[place] for place in group] for group in similar]
    if len(groups) == 1:
        return head_index
    return HeadIndex(head_index.batch, head_index.heads, width, groups, bucket.evicted_votes.device)


def _stored(table: SlotTable, settings: LayerSettings, rotary: Rotary | None) -> SlotTable:
    """Convert to the storage format."""
    return PackedTable(table, settings.store, rotary) if settings.store.packs else table


def _room(settings: LayerSettings, most: int | None, length: int) -> int:
    """Free slots for a table of `length`: up to the budget plus the steps between decisions if decoding keeps a budget.

    `most` is the largest budget in the table. Merging may leave fewer slots than the budget and fill it up later. If
    many steps pass between decisions, space is allocated as they come.
    """
    if settings.store.packs:
        return 0  # it allocates its own
    room = room_to_grow(length)
    if not settings.pipeline.decode:
        return room
    return min(settings.period, room) + (0 if most is None else min(max(most - length, 0), room))


def fewest_groups(lengths: Sequence[int], most: float) -> list[list[int]]:
    """Split indices of `lengths` into the fewest groups whose padded total is at most `most` times the true total.

    Groups are contiguous in order of length, which is optimal; longest group first, members in their original order.
    Raises ValueError for `most` below 1.
    """
    if most < 1:
        raise ValueError(f"The padding factor must be at least 1, not {most}.")
    order = np.argsort(-np.asarray(lengths), kind="stable")
    falling = np.asarray(lengths)[order]
    allowed = most * falling.sum()
    # least[n]: the smallest padded total of the first n head sets in one group; then in two, three, ...
    counts = np.arange(len(falling) + 1)
    least = np.append(0.0, counts[1:] * float(falling[0]))
    starts: list[np.ndarray] = [np.zeros(len(falling) + 1, dtype=np.int64)]
    while least[-1] > allowed:
        # A last group from `start` (row) to `end` (column), padded to the length of its first member.
        last = (counts[None] - counts[:-1, None]) * falling[:, None]
        total = np.where(last >= 0, least[:-1, None] + last, np.inf)
        starts.append(total.argmin(0))
        least = total.min(0)
    groups = []
    end = len(order)
    for start in reversed(starts):  # traced back from the end
        first = int(start[end])
        groups.append(sorted(order[first:end].tolist()))
        end = first
    return groups[::-1]
