"""Norm of a value after the output projection of its query head."""

import torch
from torch import Tensor

MOST_NUMBERS = 2**24  # projected elements in memory at once


def output_norms(values: Tensor, weight: Tensor, order: int) -> Tensor:
    """Norm ||W_o v|| of `order` 1 or 2 per query head of each slot's group, (B, H, G, S) float32.

    `values` (B, H, S, d); `weight` (B or 1, H * G, d, hidden): the projection (`AttentionPass.output_weight`).
    """
    weight = weight.float().unflatten(1, (values.shape[1], -1))  # (B or 1, H, G, d, hidden)
    if order == 2:
        gram = weight @ weight.mT
        value = values.float()[:, :, None]
        return ((value @ gram) * value).sum(-1).clamp_min(0).sqrt()
    heads = values.shape[0] * weight.shape[1] * weight.shape[2]
    hidden = weight.shape[4]
    block = max(1, MOST_NUMBERS // (heads * hidden))
    parts = [(part.float()[:, :, None] @ weight).abs().sum(-1) for part in values.split(block, 2)]
    return torch.cat(parts, -1)
