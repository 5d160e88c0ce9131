"""Values spread over the slots that follow, as a linear recurrence solved in blocks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 64


def spread_forward(values: Tensor, weight: Tensor, reach: Tensor, longest: int) -> Tensor:
    """(B, H, R, d): u_j = values_j + sum over i in [j - reach, j) of weight_i u_i; `reach` (B, H), at most `longest`.

    What slot i held when it left, earlier contributions included, is added with `weight` (B, H, R) to each of the next
    `reach` slots. Solved block by block: within a block a triangular system, between blocks only the last rows.
    """
    width, block, reach = values.shape[2], max(longest, BLOCK), reach[..., None, None]
    solved = values.new_zeros(*values.shape[:2], block, values.shape[3])  # the block before the first
    before, parts = weight.new_zeros(*weight.shape[:2], block), []
    for first in range(0, width, block):
        own, w = values[:, :, first : first + block], weight[:, :, first : first + block]
        size = own.shape[2]
        row = torch.arange(size, device=values.device)[:, None]
        gap_in, gap_out = row - row.T, row - torch.arange(-block, 0, device=values.device)
        inside = torch.where((gap_in > 0) & (gap_in <= reach), w[..., None, :], 0.0)
        arriving = torch.where(gap_out <= reach, before[..., None, :], 0.0) @ solved
        system = torch.eye(size, device=values.device) - inside
        last = torch.linalg.solve_triangular(system, own + arriving, upper=False, unitriangular=True)
        parts.append(last)
        solved, before = pad(last, (0, 0, block - size, 0)), pad(w, (block - size, 0))
    return torch.cat(parts, 2)


def share_reaching(weight: Tensor, ends: Tensor, reach: Tensor, longest: int) -> Tensor:
    """(B, H, R): how much of each slot's own value ends up in the next slot of `ends` (bool), over all paths.

    c_i = weight_i * sum over the next `reach` slots j of (1 if j is that slot, c_j if j comes before it).
    """
    width = weight.shape[-1]
    place = torch.arange(width, device=weight.device).expand_as(weight)
    goal = torch.where(ends, place, width).flip(-1).cummin(-1).values.flip(-1)
    # Backwards in time it is the same recurrence: a slot gets what later slots of its own run lead to.
    back, back_goal = weight.flip(-1), goal.flip(-1)
    block, reach, parts = max(longest, BLOCK), reach[..., None, None], []
    solved, solved_goal = weight.new_zeros(*weight.shape[:2], block), goal.new_full((*goal.shape[:2], block), -1)
    for first in range(0, width, block):
        own, mine = back[..., first : first + block], back_goal[..., first : first + block]
        size = own.shape[-1]
        row = torch.arange(size, device=weight.device)[:, None]
        gap_in, gap_out = row - row.T, row - torch.arange(-block, 0, device=weight.device)
        same = mine[..., :, None] == mine[..., None, :]
        inside = torch.where((gap_in > 0) & (gap_in <= reach) & same, own[..., None], 0.0)
        near = (gap_out <= reach) & (mine[..., :, None] == solved_goal[..., None, :])
        arriving = own * torch.where(near, solved[..., None, :], 0.0).sum(-1)
        at_goal = width - 1 - torch.arange(first, first + size, device=weight.device) == mine
        system = torch.eye(size, device=weight.device) - torch.where(at_goal[..., :, None], 0.0, inside)
        start = torch.where(at_goal, 1.0, arriving)
        last = torch.linalg.solve_triangular(system, start[..., None], upper=False, unitriangular=True)[..., 0]
        parts.append(last)
        solved, solved_goal = pad(last, (block - size, 0)), pad(mine, (block - size, 0), value=-1)
    return torch.cat(parts, -1).flip(-1)
