"""Map between a layer's heads and the buckets they are in.

A head set is one KV head of one batch row, or all heads of a row if they are equally long or the method decides across
heads. A bucket's tensors are (N, W, ...): N head sets of W heads, with W 1 or H.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


class HeadIndex:
    """`members`: the head sets of each bucket, numbered row by row. `whole`: one bucket with all head sets in order."""

    def __init__(self, rows: int, heads: int, width: int, members: Sequence[list[int]], device: torch.device) -> None:
        self.batch = rows
        self.heads = heads
        self.width = width
        self.members = [list(member) for member in members]
        self.sizes = [len(member) for member in self.members]
        flat = [head_set for member in self.members for head_set in member]
        self.whole = len(self.members) == 1 and width == heads and flat == list(range(rows))
        self._order = torch.tensor(flat, device=device)
        self._rows = self._order * width // heads
        self._back = self._order.argsort()

    def row(self, head_set: int) -> int:
        """Batch row of a head set."""
        return head_set * self.width // self.heads

    def heads_in(self, bucket: int) -> tuple[Tensor, int]:
        """Layer head index (N, W) of each head of a bucket, and the number of heads in the layer."""
        numbers = torch.arange(self.heads, device=self._order.device).expand(self.batch, -1)
        return self.by_head(numbers)[bucket], self.heads

    def by_head(self, tensor: Tensor) -> Sequence[Tensor]:
        """Split (B, H * G, ...) into each bucket's (N, W * G, ...)."""
        if self.whole:
            return [tensor]
        apart = self.heads // self.width
        stacked = tensor.reshape(self.batch * apart, tensor.shape[1] // apart, *tensor.shape[2:])
        return stacked.index_select(0, self._order).split_with_sizes(self.sizes)

    def by_row(self, tensor: Tensor) -> Sequence[Tensor]:
        """Split (B, ...) into each bucket's (N, ...)."""
        if self.whole:
            return [tensor]
        return tensor.index_select(0, self._rows).split_with_sizes(self.sizes)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Join each bucket's (N, W * G, ...) to (B, H * G, ...)."""
        if self.whole:
            return parts[0]
        joined = torch.cat(list(parts)).index_select(0, self._back)
        return joined.reshape(self.batch, -1, *joined.shape[2:])

    def join_padded(self, parts: Sequence[Any]) -> Any:
        """Join tables or plans of all buckets to (B, H, S, ...), short ones padded with zeros (invalid slots).

        Accepts tensors, and dictionaries and dataclasses of them; None means absent in that bucket.
        """
        if self.whole:
            return parts[0]
        some = next((part for part in parts if part is not None), None)
        if isinstance(some, Tensor):
            # Absent parts become empty ones, and where there are slots, short parts get as many as the longest.
            rest = some.shape[2:]
            empty = (some.shape[1], *((0, *rest[1:]) if rest else ()))
            there = [
                some.new_zeros(size, *empty) if part is None else part
                for size, part in zip(self.sizes, parts, strict=True)
            ]
            if rest:
                longest = max(part.shape[2] for part in there)
                there = [pad(part, (*(0, 0) * (part.dim() - 3), 0, longest - part.shape[2])) for part in there]
            return self.join(there)
        if isinstance(some, dict):
            return {name: self.join_padded([None if p is None else p[name] for p in parts]) for name in some}
        if is_dataclass(some) and not isinstance(some, type):
            by_field = {f.name: [None if p is None else getattr(p, f.name) for p in parts] for f in fields(some)}
            return replace(some, **{name: self.join_padded(values) for name, values in by_field.items()})
        return some

    def mapped(self, old_rows: list[int]) -> tuple[HeadIndex, list[list[int]]]:
        """The index after row i became what row `old_rows[i]` was, and per bucket the old places of its head sets.

        A bucket without remaining head sets has no places and is left out of the new index.
        """
        apart = self.heads // self.width
        members = []
        places = []
        for member in self.members:
            at = {head_set: place for place, head_set in enumerate(member)}
            new = [
                (row * apart + part, at[old * apart + part])
                for row, old in enumerate(old_rows)
                for part in range(apart)
                if old * apart + part in at
            ]
            members.append([head_set for head_set, _ in new])
            places.append([place for _, place in new])
        kept = [member for member in members if member]
        return HeadIndex(len(old_rows), self.heads, self.width, kept, self._order.device), places
