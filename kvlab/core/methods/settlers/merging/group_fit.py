"""Least-squares merge weights and log mass for all query heads of a group (docs/grouped-queries.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.core.contract.log_averages import NEVER_SEEN
from kvlab.core.contract.slot_columns import log_total
from kvlab.core.contract.view import View
from kvlab.core.methods.settlers.log_mass import Parts, log_sum_over_target, merged_logits


@dataclass(frozen=True)
class GroupFit:
    """Weights of target and sources in key and value, and the slot's log mass; each (B, H, E).

    `head_log_mass` (B, H, G, E): log mass per query head.
    """

    share: Tensor
    own: Tensor
    log_mass: Tensor
    head_log_mass: Tensor


def fit_to_group(
    view: View, source: Tensor, target: Tensor, active: Tensor, turn: Tensor | None, rows: int, alpha: float
) -> GroupFit:
    """Least-squares fit over the last `rows` queries of every head; a query `age` steps old has weight alpha^age.

    With a_n the attention of query n to a part, m_n = sum a_n over all parts and h_n the mass of the mean key without
    log mass, a part's share is sum_n m_n a_n / sum_n m_n^2, and the slot's mass is scaled by sum_n m_n h_n / sum_n
    h_n^2. Exact for a single query.
    """
    logits = view.seen.last_logits(rows)  # (B, H, G, r, S)
    group, rows, width = logits.shape[2], logits.shape[3], logits.shape[4]
    whole = logits + view.slots.log_mass_of_heads()[:, :, :, None]
    normalizer = log_total(whole, view.seen.sinks).nan_to_num(neginf=0.0)
    attention = (whole - normalizer).clamp_min(NEVER_SEEN).flatten(2, 3)  # (B, H, N, S), log
    normalizer, blind = normalizer.flatten(2, 3), torch.isneginf(logits).flatten(2, 3)
    of_source, of_target = at_rows(attention, source), at_rows(attention, target)
    log_sum = log_sum_of_rows(of_source, of_target, target, active, width)  # (B, H, N, E)
    age = torch.arange(rows - 1, -1, -1, device=logits.device, dtype=torch.float32)
    weight = (age * math.log(alpha)).repeat(group)[:, None]  # log
    total = torch.logsumexp(2 * log_sum + weight, 2)
    share = torch.logsumexp(log_sum + of_source + weight, 2).sub_(total).exp_()
    own = torch.logsumexp(log_sum + of_target + weight, 2).sub_(total).exp_()
    bare = merged_logits(view, Parts(source, target, active, share, own, turn), rows) - normalizer
    # Queries before the target was written could not see it.
    bare = bare.masked_fill(at_rows(blind, target), 2 * NEVER_SEEN)
    held, free = ((part + weight).unflatten(2, (group, rows)) for part in (log_sum + bare, 2 * bare))
    of_heads = torch.logsumexp(held, 3) - torch.logsumexp(free, 3)  # (B, H, G, E)
    log_mass = torch.logsumexp(held, (2, 3)) - torch.logsumexp(free, (2, 3))
    return GroupFit(share, own, log_mass, of_heads)


def at_rows(rows: Tensor, index: Tensor) -> Tensor:
    """Columns `index` (B, H, E) of (B, H, N, S), (B, H, N, E)."""
    return rows.gather(3, index[:, :, None].expand(-1, -1, rows.shape[2], -1))


def log_sum_of_rows(source: Tensor, own: Tensor, target: Tensor, active: Tensor, width: int) -> Tensor:
    """`log_sum_over_target` for each of N queries: logs (B, H, N, E), `target` and `active` (B, H, E)."""
    target, active = (tensor[:, :, None].expand_as(own).flatten(1, 2) for tensor in (target, active))
    return log_sum_over_target(source.flatten(1, 2), own.flatten(1, 2), target, active, width).view_as(own)
