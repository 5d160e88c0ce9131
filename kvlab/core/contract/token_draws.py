"""Random numbers tied to tokens: independent of batch and time."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


def _signed(number: int) -> int:
    number &= _MASK
    return number - (1 << 64) if number >> 63 else number


MIX = _signed(0x9E3779B97F4A7C15), _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def head_streams(seed: int, heads: int, device: torch.device) -> Tensor:
    """Start (H, 1) int64 of each head's random stream."""
    return torch.arange(heads, device=device)[:, None] * MIX[1] + stream_start(seed)


def stream_start(seed: int) -> int:
    """Start of head 0's stream; head h starts `h * MIX[1]` later, in 64 bits."""
    return _signed(seed * MIX[2])


def uniform_draws(seed: int, position: Tensor, streams: Tensor | None = None) -> Tensor:
    """Uniform numbers in [0, 1) for the tokens at `position` (B, H, E), float32, one stream per head.

    Counter-based (SplitMix64 of seed, head and position): a token draws the same number in any batch and at any time,
    so runs are reproducible row by row. `streams`: precomputed `head_streams`.
    """
    streams = head_streams(seed, position.shape[1], position.device) if streams is None else streams
    state = torch.add(streams, position.long(), alpha=MIX[0])
    for shift, factor in ((30, MIX[1]), (27, MIX[2])):
        state = (state ^ _shift_right(state, shift)) * factor
    state = state ^ _shift_right(state, 31)
    return _shift_right(state, 40).float() / 2**24


def _shift_right(state: Tensor, by: int) -> Tensor:
    """Logical right shift."""
    return (state >> by) & ((1 << (64 - by)) - 1)
