"""Where a layer stood at the end of its prompt, so that a rehearsal can be taken back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mark:
    """A layer's state, but for its slots, which stay where they are."""

    width: int
    dense: bool
    whole: torch.dtype  # of positions
    tokens_seen: Tensor
    cumulative_length: int
    lengths: list[int]
    waiting: int
    rotary: Any
    states: dict[str, Any]  # a recurrent state beside the slots
    every: list[int]  # of each row's queries of the rehearsal one in so many is kept
