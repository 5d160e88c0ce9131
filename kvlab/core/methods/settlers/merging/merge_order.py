"""Order in which a prompt's slots leave when the most mergeable go first."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kvlab.core.contract.view import View
from kvlab.core.methods.settlers.edges import ROW_BLOCK, similarity


def merge_first(view: View, threshold: float) -> View:
    """Reorder scores so that the most mergeable slots are evicted first (KeepKV, table 3, which gives no algorithm).

    A slot is mergeable if its key has a cosine of at least `threshold` with that of a more important one; the most
    similar are merged first, into the nearest kept slot. If more must be evicted, the least important others follow,
    merge targets last. Costs the cosines of all pairs, computed in blocks.
    """
    score, valid = view.slots.score, view.slots.valid
    important = torch.nan_to_num(score, nan=-torch.inf).masked_fill(~valid, -torch.inf)
    rank = important.argsort(dim=-1, stable=True).argsort(dim=-1).masked_fill(~valid, -1)
    cosine, target = _nearest_above(view.slots.keys, rank)
    mergeable = valid & (cosine >= threshold)
    takers = torch.zeros_like(rank).scatter_add(2, target, mergeable.long()) > 0
    order = torch.where(mergeable, -1 - cosine, rank.float() + takers * valid.shape[-1])
    return replace(view, slots=replace(view.slots, score=order))


def _nearest_above(keys: Tensor, rank: Tensor) -> tuple[Tensor, Tensor]:
    """(cosine, index), each (B, H, S): the most similar slot of higher rank; -inf if there is none."""
    blocks = []
    for first in range(0, keys.shape[2], ROW_BLOCK):
        rows = slice(first, first + ROW_BLOCK)
        above = rank[:, :, None, :] > rank[:, :, rows, None]
        blocks.append(similarity(keys[:, :, rows], keys, "cosine").masked_fill(~above, -torch.inf).max(-1))
    return torch.cat([block.values for block in blocks], 2), torch.cat([block.indices for block in blocks], 2)
