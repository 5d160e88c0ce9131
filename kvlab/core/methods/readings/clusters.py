"""k-means over the keys of each head."""

from __future__ import annotations

import torch
from torch import Tensor

FAR = 1e6  # of every coordinate, in float32


def spread_rows(states: Tensor, valid: Tensor, most: int, count: Tensor | None = None) -> Tensor:
    """`most` of the valid states (..., S, d), evenly spaced in order, (..., most, d): k-means starts from them.

    Where only `count` (..., 1) are used, those are evenly spaced. Papers draw the starts at random; these make a run
    reproducible in any batch.
    """
    order = (~valid).to(torch.uint8).argsort(dim=-1, stable=True)
    live = valid.sum(-1, keepdim=True).clamp_min(1)
    number = torch.full_like(live, most) if count is None else count.clamp_min(1)
    rank = ((2 * torch.arange(most, device=states.device) + 1) * live // (2 * number)).clamp_max(live - 1)
    own = order.gather(-1, rank)[..., None]
    return states.gather(-2, own.expand(*own.shape[:-1], states.shape[-1]))


def nearest(states: Tensor, centroids: Tensor) -> Tensor:
    """Number (..., S) of the nearest centroid (..., C, d) of each state (..., S, d), by Euclidean distance."""
    products = states @ centroids.transpose(-1, -2)
    return (centroids.square().sum(-1)[..., None, :] - 2 * products).argmin(-1)


def means_of(states: Tensor, member: Tensor, weight: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(weighted means (..., count, d), total weights (..., count)) of the states (..., S, d) of each cluster."""
    total = weight.new_zeros(*member.shape[:-1], count).scatter_add_(-1, member, weight)
    sums = states.new_zeros(*member.shape[:-1], count, states.shape[-1])
    sums.scatter_add_(-2, member[..., None].expand_as(states), states * weight[..., None])
    return sums / total.clamp_min(torch.finfo(total.dtype).tiny)[..., None], total


def k_means(states: Tensor, valid: Tensor, count: int, rounds: int) -> tuple[Tensor, Tensor]:
    """(centroids (..., C, d), cluster (..., S)) of the valid states (..., S, d) float32; Lloyd's algorithm.

    A cluster that loses all its states keeps its centroid. States that are not valid get a cluster without influence.
    With fewer states than clusters the other centroids are far away: copies would be told apart by rounding.
    """
    used = valid.sum(-1, keepdim=True).clamp(1, count)
    weight = valid.to(states.dtype)
    unused = torch.arange(count, device=states.device) >= used
    centroids = spread_rows(states, valid, count, used).masked_fill(unused[..., None], FAR)
    for _ in range(rounds):
        means, total = means_of(states, nearest(states, centroids), weight, count)
        centroids = torch.where(total[..., None] > 0, means, centroids)
    return centroids, nearest(states, centroids)
