"""Gather, scatter, mask and extend tensors (B, H, S[, n]) along the slot axis."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(index: Tensor, tensor: Tensor) -> Tensor:
    """Expand `index` (B, H, E) for a gather or scatter along the slots of `tensor` (B, H, S[, n])."""
    return index if tensor.dim() == 3 else index[..., None].expand(*index.shape, tensor.shape[-1])


def like(mask: Tensor, tensor: Tensor) -> Tensor:
    """Expand `mask` (B, H, S) to broadcast with `tensor` (B, H, S[, n])."""
    return mask if tensor.dim() == 3 else mask[..., None]


def at(tensor: Tensor, index: Tensor) -> Tensor:
    """Slots `index` (B, H, E) of `tensor`, (B, H, E[, n])."""
    return tensor.gather(2, wide(index, tensor))


def longer(tensor: Tensor, count: int) -> Tensor:
    """Append `count` zero slots."""
    return torch.cat([tensor, tensor.new_zeros(*tensor.shape[:2], count, *tensor.shape[3:])], 2)
