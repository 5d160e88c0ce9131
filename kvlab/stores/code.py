"""Protocol of quantization codes for keys or values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

Coded = Mapping[str, Tensor]
MOST = torch.finfo(torch.float16).max


class Code(Protocol):
    """Encodes and decodes states (B, H, S, d) of any width d.

    The encoding is a dictionary of tensors: (B, H, S, ...) per slot, and (B, H, S / group, ...) for names in `shared`,
    which the slots of a group share.
    """

    @property
    def group(self) -> int:
        """Number of consecutive slots encoded together; 1 if each is encoded separately."""
        ...

    @property
    def shared(self) -> tuple[str, ...]:
        """Names of the tensors that the slots of a group share."""
        ...

    @property
    def scales(self) -> tuple[str, ...]:
        """Names of all tensors that are not codes: scales, minima, norms."""
        ...

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Encode states (B, H, S, d), S a multiple of `group`; slots not `valid` (B, H, S) have no influence."""
        ...

    def decode(self, coded: Coded, width: int) -> Tensor:
        """Decoded states (B, H, S, width) float32."""
        ...

    def products(self, coded: Coded, query: Tensor) -> Tensor:
        """Dot products (B, H, r, S) float32 of `query` (B, H, r, d) with the decoded states."""
        ...

    def weighted_sum(self, coded: Coded, mass: Tensor, width: int) -> Tensor:
        """`mass` (B, H, r, S) float32 times the decoded states: (B, H, r, width)."""
        ...


class Decoding:
    """Products for codes that have to be decoded for them."""

    def decode(self, coded: Coded, width: int) -> Tensor:
        """Decoded states (B, H, S, width) float32."""
        raise NotImplementedError

    def products(self, coded: Coded, query: Tensor) -> Tensor:
        """Dot products (B, H, r, S) float32 of `query` (B, H, r, d) with the decoded states."""
        return query @ self.decode(coded, query.shape[-1]).transpose(-1, -2)

    def weighted_sum(self, coded: Coded, mass: Tensor, width: int) -> Tensor:
        """`mass` (B, H, r, S) float32 times the decoded states: (B, H, r, width)."""
        return mass @ self.decode(coded, width)


def half(numbers: Tensor) -> Tensor:
    """Convert to float16 with clamping instead of infinity."""
    return numbers.clamp(-MOST, MOST).to(torch.float16)
