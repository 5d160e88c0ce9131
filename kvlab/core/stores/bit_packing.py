"""Pack small integers into bytes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

# By bits, numbers that fill whole bytes together: (numbers, bytes).
LOTS = {2: (4, 1), 3: (8, 3), 4: (2, 1), 5: (8, 5), 6: (4, 3), 8: (1, 1)}


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Pack integers (..., n) below 2 ** bits into (..., bytes) uint8; the last group is padded with 0."""
    numbers, size = LOTS[bits]
    word_type = _word_type(size)
    lots = pad(codes.to(word_type), (0, -codes.shape[-1] % numbers)).unflatten(-1, (-1, numbers))
    word = (lots << _places(numbers, bits, codes.device)).sum(-1, dtype=word_type)[..., None]
    return (word >> _places(size, 8, codes.device)).bitwise_and_(255).to(torch.uint8).flatten(-2)


def unpack_bits(lots: Tensor, bits: int, count: int) -> Tensor:
    """Inverse of `pack_bits`, (..., count) int32."""
    numbers, size = LOTS[bits]
    word_type = _word_type(size)
    word = (lots.unflatten(-1, (-1, size)).to(word_type) << _places(size, 8, lots.device)).sum(-1, dtype=word_type)
    codes = (word[..., None] >> _places(numbers, bits, lots.device)).bitwise_and_(2**bits - 1)
    return codes.flatten(-2)[..., :count].to(torch.int32)


def _word_type(size: int) -> torch.dtype:
    return torch.int32 if size < 4 else torch.int64


def _places(count: int, width: int, device: torch.device) -> Tensor:
    return torch.arange(0, count * width, width, dtype=torch.int32, device=device)
