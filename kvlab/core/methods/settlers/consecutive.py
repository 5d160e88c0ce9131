"""Runs of consecutive similar keys, for all heads at once (KVMerger, Algorithm 1).

Slots are sorted by position. The greedy scan goes from the last slot to the first: a set starts at an anchor and
includes preceding slots as long as each is similar to the anchor; the first that is not becomes the next anchor. How
far a set would reach from each slot depends only on similarities in a band; the anchors then form a chain of jumps,
followed for all heads by pointer doubling.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

# Cosines from 0.975 down to -1, where every run of consecutive slots is one set.
THETAS = tuple(1 - 0.025 * step for step in range(1, 81))


@dataclass(frozen=True)
class Sets:
    """Sets of slots (B, H, S): each slot's anchor, and which slots are anchors."""

    anchor: Tensor  # int64; a slot that may not merge is its own anchor
    is_anchor: Tensor  # bool, among slots that may merge
    theta: Tensor  # (B, H) float32: the threshold used


def nearness(keys: Tensor, position: Tensor, may_merge: Tensor, longest: int) -> Tensor:
    """Lowest cosine (B, H, S, longest - 1) between slot j and each of the o slots before it, for o = 1, 2, ...

    -inf after a slot that may not merge or a missing position: a gap ends a set. Blocks of `longest` slots are compared
    with their own and the previous block, so memory is O(S * longest).
    """
    width = keys.shape[2]
    blocks = -(-width // longest)
    unit = pad(normalize(keys.float(), dim=-1), (0, 0, longest, blocks * longest - width))
    block_keys = unit[:, :, longest:].unflatten(2, (blocks, longest))
    before = unit[:, :, :-longest].unflatten(2, (blocks, longest))
    cosine = block_keys @ torch.cat([before, block_keys], 3).transpose(-1, -2)  # (B, H, blocks, longest, 2 * longest)
    row = torch.arange(longest, device=keys.device)[:, None]
    offset = torch.arange(1, longest, device=keys.device)
    band = cosine.gather(4, (longest + row - offset).expand(*cosine.shape[:4], -1)).flatten(2, 3)[:, :, :width]
    # clamped indices fail the position check
    other = (torch.arange(width, device=keys.device)[:, None] - offset).clamp_min(0)
    joined = (position[..., None] - position[:, :, other] == offset) & may_merge[..., None] & may_merge[:, :, other]
    return band.masked_fill(~joined, -torch.inf).cummin(-1).values


def anchors(length: Tensor) -> Tensor:
    """Slots (B, H, S) reached from the last one by repeatedly jumping `length` slots back.

    Pointer doubling: each round follows twice as many jumps, so S slots take log2(S) rounds.
    """
    width = length.shape[-1]
    place = torch.arange(1, width + 1, device=length.device)
    jump = pad((place - length).clamp_min(0), (1, 0))  # place 0 is before the first slot, and jumps to itself
    reached = torch.zeros(jump.shape, device=length.device)
    reached[..., -1] = 1.0
    for _ in range(width.bit_length()):
        reached = reached.scatter_reduce(2, jump, reached, "amax")
        jump = jump.gather(2, jump)
    return reached[..., 1:] > 0


def find_sets(near: Tensor, may_merge: Tensor, most: Tensor, theta: float | None, loosest: float = -1.0) -> Sets:
    """Sets at threshold `theta`, or at each head's largest grid threshold that gives at most `most` (B, H) sets.

    If even the `loosest` threshold gives more, its sets are returned. The grid is searched downwards, because the
    greedy scan is not strictly monotone in theta, until every head is done.
    """
    chosen = torch.zeros_like(may_merge)
    used = torch.full(most.shape, -1.0, device=near.device)
    open_heads = torch.ones_like(most, dtype=torch.bool)
    grid = [*(value for value in THETAS if value > loosest + 1e-9), loosest]
    for value in grid if theta is None else [theta]:
        found = anchors(1 + (near > value).sum(-1)) & may_merge
        chosen = torch.where(open_heads[..., None], found, chosen)
        used = torch.where(open_heads, value, used)
        open_heads = open_heads & (found.sum(-1) > most)
        if theta is None and not bool(open_heads.any()):
            break
    # each slot's anchor is the nearest one at or after it
    width = chosen.shape[-1]
    place = torch.arange(width, device=chosen.device).expand_as(chosen)
    after = torch.where(chosen, place, width - 1).flip(-1).cummin(-1).values.flip(-1)
    return Sets(torch.where(may_merge, after, place), chosen, used)
