"""Turning a rotated key to another position: R(a) then R(b) is R(a + b)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotary:
    """A model's rotary position embedding: `inverse_frequencies` (rotated width / 2,) over the first coordinates.

    Most families pair coordinate i with i + rotated width / 2; `interleaved` ones (Cohere, GLM, Llama 4) pair 2 i with
    2 i + 1. A layer that does not rotate has frequencies of zero. `scaling` (YaRN's attention factor) lengthens what is
    rotated: it is in a stored key already, and in a query that was asked.
    """

    inverse_frequencies: Tensor
    interleaved: bool = False
    scaling: float = 1.0

    def lengthened(self, states: Tensor) -> Tensor:
        """`states` (..., d) that no model rotated, as long as if it had; float32."""
        width = 2 * self.inverse_frequencies.numel()
        return torch.cat([states[..., :width].float() * self.scaling, states[..., width:].float()], -1)

    def turn(self, states: Tensor, by: Tensor) -> Tensor:
        """`states` (..., d) turned by `by` (...) positions, float32; negative turns go back towards position 0."""
        angle = by.float()[..., None] * self.inverse_frequencies.to(states.device)
        return self.rotated(states, angle.cos(), angle.sin())

    def of_pairs(self, numbers: Tensor) -> Tensor:
        """(..., d): each number replaced by the mean over the two coordinates that turn together."""
        width = 2 * self.inverse_frequencies.numel()
        turning, rest = numbers.split([width, numbers.shape[-1] - width], dim=-1)
        pairs = turning.unflatten(-1, (-1, 2) if self.interleaved else (2, -1))
        mean = pairs.mean(-1 if self.interleaved else -2, keepdim=True).expand_as(pairs)
        return torch.cat([mean.flatten(-2), rest], -1)

    def rotated(self, states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """`states` (..., d) with their pairs turned by angles of this `cosine` and `sine` (..., width / 2), float32."""
        width = 2 * self.inverse_frequencies.numel()
        turning, rest = states.float().split([width, states.shape[-1] - width], dim=-1)
        pairs = turning.unflatten(-1, (-1, 2) if self.interleaved else (2, -1))
        apart = -1 if self.interleaved else -2
        first, second = pairs.unbind(apart)
        pairs = torch.stack([first * cosine - second * sine, second * cosine + first * sine], apart)
        return torch.cat([pairs.flatten(-2), rest], dim=-1)
