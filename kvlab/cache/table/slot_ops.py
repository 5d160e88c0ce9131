"""Gather, scatter, mask and lengthen along the slots of tensors (B, H, S[, n]), the third axis."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(index: Tensor, tensor: Tensor) -> Tensor:
    """`index` (B, H, E) for a gather or scatter along the slots of `tensor` (B, H, S[, n])."""
    return index if tensor.dim() == 3 else index[..., None].expand(*index.shape, tensor.shape[-1])


def like(mask: Tensor, tensor: Tensor) -> Tensor:
    """`mask` (B, H, S) for `tensor` (B, H, S[, n])."""
    return mask if tensor.dim() == 3 else mask[..., None]


def at(tensor: Tensor, index: Tensor) -> Tensor:
    """(B, H, E[, n]) the slots `index` (B, H, E) of `tensor`."""
    return tensor.gather(2, wide(index, tensor))


def longer(tensor: Tensor, count: int) -> Tensor:
    """`tensor` with `count` slots of zeros behind."""
    return torch.cat([tensor, tensor.new_zeros(*tensor.shape[:2], count, *tensor.shape[3:])], 2)
