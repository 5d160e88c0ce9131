"""What a code is: a way to hold keys or values in fewer bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

Coded = Mapping[str, Tensor]
MOST = torch.finfo(torch.float16).max


class Code(Protocol):
    """Encodes and decodes states (B, H, S, d) of any width d.

    What is coded is a few tensors by name: (B, H, S, ...) where each slot has its own, and (B, H, S / group, ...) in
    `shared` where the slots of a group have it together.
    """

    @property
    def group(self) -> int:
        """Slots that are coded together, one behind the other; 1 where each is coded by itself."""
        ...

    @property
    def shared(self) -> tuple[str, ...]:
        """Names of what the slots of a group have together."""
        ...

    @property
    def scales(self) -> tuple[str, ...]:
        """Names of all that is not the codes themselves: scales, least values, norms."""
        ...

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Code states (B, H, S, d), S a multiple of `group`; slots that are not `valid` (B, H, S) leave no trace."""
        ...

    def decode(self, coded: Coded, width: int) -> Tensor:
        """(B, H, S, width) float32."""
        ...


def half(numbers: Tensor) -> Tensor:
    """In 16 bits, never infinite."""
    return numbers.clamp(-MOST, MOST).to(torch.float16)
