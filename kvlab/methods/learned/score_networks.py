"""Small networks that predict, from what an attention module is given, how much each of its slots will be needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear


@dataclass(frozen=True)
class ScoreHead:
    """Of one layer: a linear map of hidden states to H scores, or two with a GELU between (`inner` none: one).

    `weight` (H, D) and `bias` (H,), or (H, K) behind `inner` (K, D) and `inner_bias` (K,).
    """

    weight: Tensor
    bias: Tensor
    inner: Tensor | None = None
    inner_bias: Tensor | None = None

    def predict(self, states: Tensor) -> Tensor:
        """(B, H, q) float32 log scores of hidden states (B, q, D)."""
        own = self.to(states.device)
        given = states.float()
        if own.inner is not None:
            given = gelu(linear(given, own.inner, own.inner_bias))
        return linear(given, own.weight, own.bias).transpose(1, 2)

    def to(self, device: torch.device) -> ScoreHead:
        """The same on a device."""
        return ScoreHead(**{name: tensor.to(device) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """By name, those that are there."""
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}


def untrained(states: Tensor, heads: int, layer: int) -> ScoreHead:
    """Random numbers in the place of a fitted head, the same for the same layer: for tests and for timing."""
    source = torch.Generator().manual_seed(layer)
    size = states.shape[-1]
    return ScoreHead(torch.randn(heads, size, generator=source) / size**0.5, torch.zeros(heads))
