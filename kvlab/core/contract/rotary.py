"""Rotate keys to another position: R(a) then R(b) is R(a + b)."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotary:
    """A model's rotary embedding: `inverse_frequencies` (rotated width / 2,) over the first coordinates.

    Most families pair coordinate i with i + rotated width / 2; `interleaved` ones (Cohere, GLM, Llama 4) pair 2 i with
    2 i + 1. A layer without rotation has zero frequencies. `scaling` (YaRN's attention factor) multiplies rotated
    states; it is already included in stored keys and queries.
    """

    inverse_frequencies: Tensor
    interleaved: bool = False
    scaling: float = 1.0

    def lengthened(self, states: Tensor) -> Tensor:
        """Apply `scaling` to `states` (..., d) that no model rotated; float32."""
        width = 2 * self.inverse_frequencies.numel()
        return torch.cat([states[..., :width].float() * self.scaling, states[..., width:].float()], -1)

    def turn(self, states: Tensor, by: Tensor) -> Tensor:
        """Rotate `states` (..., d) by `by` (...) positions, float32; negative values rotate towards position 0."""
        angle = by.float()[..., None] * self.inverse_frequencies.to(states.device)
        return self.rotated(states, angle.cos(), angle.sin())

    def of_pairs(self, numbers: Tensor) -> Tensor:
        """Replace each number (..., d) by the mean over the two coordinates of its pair."""
        width = 2 * self.inverse_frequencies.numel()
        turning, rest = numbers.split([width, numbers.shape[-1] - width], dim=-1)
        pairs = turning.unflatten(-1, (-1, 2) if self.interleaved else (2, -1))
        mean = pairs.mean(-1 if self.interleaved else -2, keepdim=True).expand_as(pairs)
        return torch.cat([mean.flatten(-2), rest], -1)

    def rotated(self, states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Rotate pairs of `states` (..., d) by angles given by `cosine` and `sine` (..., width / 2), float32."""
        width = 2 * self.inverse_frequencies.numel()
        turning, rest = states.float().split([width, states.shape[-1] - width], dim=-1)
        pairs = turning.unflatten(-1, (-1, 2) if self.interleaved else (2, -1))
        apart = -1 if self.interleaved else -2
        first, second = pairs.unbind(apart)
        pairs = torch.stack([first * cosine - second * sine, second * cosine + first * sine], apart)
        return torch.cat([pairs.flatten(-2), rest], dim=-1)
