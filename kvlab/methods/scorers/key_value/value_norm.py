"""How long a value is once the output projection of its query head has acted."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_NUMBERS = 2**24  # of projected values that lie in memory at once


def output_norms(values: Tensor, weight: Tensor, order: int) -> Tensor:
    """(B, H, G, S) float32: the norm ||W_o v|| of `order` 1 or 2 for every query head of each slot's group.

    `values` (B, H, S, d); `weight` (B or 1, H * G, d, hidden) is the projection (`Seen.output_weight`).
    """
    weight = weight.float().unflatten(1, (values.shape[1], -1))  # (B or 1, H, G, d, hidden)
    if order == 2:
        gram = weight @ weight.mT
        value = values.float()[:, :, None]
        return ((value @ gram) * value).sum(-1).clamp_min(0).sqrt()
    heads, hidden = values.shape[0] * weight.shape[1] * weight.shape[2], weight.shape[4]
    block = max(1, MOST_NUMBERS // (heads * hidden))
    parts = [(part.float()[:, :, None] @ weight).abs().sum(-1) for part in values.split(block, 2)]
    return torch.cat(parts, -1)
