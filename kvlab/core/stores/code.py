"""Base classes of quantization codes for keys or values."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

# By bits, numbers that fill whole bytes together: (numbers, bytes, a type that holds these).
LOTS = {
    1: (8, 1, torch.int32),
    2: (4, 1, torch.int32),
    3: (8, 3, torch.int32),
    4: (2, 1, torch.int32),
    5: (8, 5, torch.int64),
    6: (4, 3, torch.int32),
    8: (1, 1, torch.int32),
}


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Pack integers (..., n) below 2 ** bits into (..., bytes) uint8; the last group is padded with 0."""
    numbers, size, word_type = LOTS[bits]
    lots = pad(codes.to(word_type), (0, -codes.shape[-1] % numbers)).unflatten(-1, (-1, numbers))
    word = (lots << _places(numbers, bits, codes.device)).sum(-1, dtype=word_type)[..., None]
    return (word >> _places(size, 8, codes.device)).bitwise_and_(255).to(torch.uint8).flatten(-2)


def unpack_bits(lots: Tensor, bits: int, count: int) -> Tensor:
    """Inverse of `pack_bits`, (..., count) int32."""
    numbers, size, word_type = LOTS[bits]
    word = (lots.unflatten(-1, (-1, size)).to(word_type) << _places(size, 8, lots.device)).sum(-1, dtype=word_type)
    codes = (word[..., None] >> _places(numbers, bits, lots.device)).bitwise_and_(2**bits - 1)
    return codes.flatten(-2)[..., :count].to(torch.int32)


def _places(count: int, width: int, device: torch.device) -> Tensor:
    return torch.arange(0, count * width, width, dtype=torch.int32, device=device)


Coded = Mapping[str, Tensor]
MOST = torch.finfo(torch.float16).max
TINY = 1e-20


class Code:
    """Base class of what encodes and decodes states (B, H, S, d) of any width d, a frozen dataclass.

    The encoding is a dictionary of tensors: (B, H, S, ...) per slot, and (B, H, S / group, ...) for names in `shared`,
    which the slots of a group share. Products decode all slots here; codes that need not do so override them.
    """

    group: int  # number of consecutive slots encoded together; 1 if each is encoded separately
    shared: tuple[str, ...]  # names of the tensors that the slots of a group share
    scales: tuple[str, ...]  # names of all tensors that are not codes: scales, minima, norms

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Encode states (B, H, S, d), S a multiple of `group`; slots not `valid` (B, H, S) have no influence."""
        raise NotImplementedError

    def decode(self, coded: Coded, width: int) -> Tensor:
        """Decoded states (B, H, S, width) float32."""
        raise NotImplementedError

    def products(self, coded: Coded, query: Tensor) -> Tensor:
        """Dot products (B, H, r, S) float32 of `query` (B, H, r, d) with the decoded states."""
        return query @ self.decode(coded, query.shape[-1]).transpose(-1, -2)

    def weighted_sum(self, coded: Coded, mass: Tensor, width: int) -> Tensor:
        """`mass` (B, H, r, S) float32 times the decoded states: (B, H, r, width)."""
        return mass @ self.decode(coded, width)


@dataclass(frozen=True)
class Learning(Code):
    """Codes with tensors per head (B, H, ...) that are learned from the slots that are packed first."""

    def learn(self, states: Tensor, valid: Tensor, query_squares: Tensor | None) -> dict[str, Tensor]:
        """Fields of this dataclass, learned from the `valid` (B, H, S) `states` (B, H, S, d).

        `query_squares` (B, H, d): see `query_squares`.
        """
        raise NotImplementedError

    def head_bytes(self, width: int) -> int:
        """Bytes of a head's learned tensors, and of the queries' squares if it needs them."""
        raise NotImplementedError


def query_squares(query: Tensor, valid: Tensor | None, heads: int, rows: int) -> Tensor:
    """Mean square of each channel of the last `rows` real queries, divided by the head's largest: (B, H, d) float16.

    `query` (B, Hq, q, d) with Hq a multiple of `heads`, averaged over the query heads of a KV head; `valid` (B, q).
    """
    real = torch.ones_like(query[:, 0, :, 0], dtype=torch.bool) if valid is None else valid
    last = real & (real.long().flip(-1).cumsum(-1).flip(-1) <= rows)
    squares = query.float().square().masked_fill(~last[:, None, :, None], 0.0).sum(2).unflatten(1, (heads, -1)).mean(2)
    return half(squares / squares.amax(-1, keepdim=True).clamp_min(TINY))


def half(numbers: Tensor) -> Tensor:
    """Convert to float16 with clamping instead of infinity."""
    return numbers.clamp(-MOST, MOST).to(torch.float16)
