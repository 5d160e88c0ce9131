"""Small networks that predict slot scores from an attention module's hidden states."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear


@dataclass(frozen=True)
class ScoreHead:
    """Score network of one layer: a linear map of hidden states to H scores, or two with a GELU between (`inner`).

    `weight` (H, D) and `bias` (H,), or (H, K) after `inner` (K, D) and `inner_bias` (K,).
    """

    weight: Tensor
    bias: Tensor
    inner: Tensor | None = None
    inner_bias: Tensor | None = None

    def predict(self, states: Tensor) -> Tensor:
        """Log scores (B, H, q) float32 of hidden states (B, q, D)."""
        own = self.to(states.device)
        given = states.float()
        if own.inner is not None:
            given = gelu(linear(given, own.inner, own.inner_bias))
        return linear(given, own.weight, own.bias).transpose(1, 2)

    def to(self, device: torch.device) -> ScoreHead:
        return ScoreHead(**{name: tensor.to(device) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}


def untrained(states: Tensor, heads: int, layer: int) -> ScoreHead:
    """Random weights determined by the layer, for tests and timing."""
    source = torch.Generator().manual_seed(layer)
    size = states.shape[-1]
    return ScoreHead(torch.randn(heads, size, generator=source) / size**0.5, torch.zeros(heads))
