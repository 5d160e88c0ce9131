"""The mask of a sliding layer, made block of rows by block of rows, so that no T x T tensor ever exists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import sdpa_mask

from kvlab.attention.slot_attention import ROW_BLOCK


@dataclass(frozen=True)
class RowMask:
    """What transformers said of a mask; models hand it on as they would hand on a tensor.

    `geometry` are the arguments of a mask function (`transformers.masking_utils`): of `q_length` queries from position
    `q_offset` on, `kv_length` slots from `kv_offset` on, a query sees none that is `local_size` or more behind it.
    """

    geometry: Mapping[str, Any]

    def blocks(self, device: torch.device) -> Iterator[tuple[slice, slice, Tensor]]:
        """(rows, the columns they can see, their mask (B, 1, rows, columns) bool on `device`) from the first row on."""
        given = self.geometry
        rows, columns = given["q_length"], given["kv_length"]
        behind = given["q_offset"] - given["kv_offset"]  # the column of the first row's own token
        for first in range(0, rows, ROW_BLOCK):
            last = min(first + ROW_BLOCK, rows)
            low = max(behind + first - given["local_size"] + 1, 0)
            high = min(behind + last, columns)
            own = {
                "q_length": last - first,
                "q_offset": given["q_offset"] + first,
                "kv_length": high - low,
                "kv_offset": given["kv_offset"] + low,
                "device": device,
                "allow_is_causal_skip": False,
            }
            if isinstance(padding := given.get("attention_mask"), Tensor):
                own["attention_mask"] = padding.to(device)
            mask = sdpa_mask(**{**given, **own})
            assert mask is not None
            yield slice(first, last), slice(low, high), mask

    def to(self, *_: object, **__: object) -> RowMask:
        """Itself: each block is made where it is needed (accelerate moves what it hands to a layer)."""
        return self


def dense_blocks(mask: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """The same of a mask (B, 1, q, S) that is there already."""
    for first in range(0, mask.shape[2], ROW_BLOCK):
        rows = slice(first, min(first + ROW_BLOCK, mask.shape[2]))
        yield rows, slice(0, mask.shape[3]), mask[:, :, rows]
