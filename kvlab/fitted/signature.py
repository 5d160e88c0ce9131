"""Whether a file was fitted to the weights at hand: a few numbers of each parameter tell one model from another."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kvlab.fitted.named_weights import named_weights

SAMPLED = 4  # numbers of each parameter
MOST_DIFFERENCE = 0.01  # relative; rounding to bfloat16 makes 0.002, any training far more


def signature(model: nn.Module) -> Tensor:
    """(parameters, 4) float32: the first numbers of every parameter by name, which any further training changes."""
    named = sorted(named_weights(model), key=lambda pair: pair[0])
    rows = torch.zeros(len(named), SAMPLED)
    for row, (_, parameter) in zip(rows, named, strict=True):
        first = parameter.flatten()[:SAMPLED].float().cpu()
        row[: len(first)] = first
    return rows


def same_weights(fitted_to: Tensor, model: nn.Module) -> bool:
    """Whether `model` has the weights of that signature, up to rounding."""
    now = signature(model)
    return fitted_to.shape == now.shape and bool((fitted_to - now).norm() <= MOST_DIFFERENCE * fitted_to.norm())
