"""Budgets from a model's head profile: what a model-wide cut gave the heads on other texts."""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.contract import LowestScore, Selector, View, proportional
from kvlab.core.methods.allocators.model_wide import CountsProtected, protected_by

EVEN = "even"  # profile of equal heads

Levels = Literal["shares", "two"]


@dataclass(frozen=True)
class HeadShares:
    """Share of a model's slots per head, (layers, heads), at increasing budgets (shares of a prompt)."""

    budgets: tuple[float, ...]
    shares: tuple[tuple[tuple[float, ...], ...], ...]

    def at(self, budget: float) -> Tensor:
        """Shares (L, H) at one budget: linear in its logarithm, constant beyond the ends."""
        table = torch.tensor(self.shares, dtype=torch.float64)
        logs = [math.log(b) for b in self.budgets]
        place = min(max(math.log(budget), logs[0]), logs[-1])
        above = next(index for index, log in enumerate(logs) if log >= place)
        below = max(above - 1, 0)
        span = logs[above] - logs[below]
        part = (place - logs[below]) / span if span else 1.0
        mixed = table[below] * (1 - part) + table[above] * part
        return mixed / mixed.sum()


@dataclass(frozen=True)
class HeadProfile(CountsProtected):
    """Split the model's budget over heads by a profile, independent of the text (DuoAttention, made continuous).

    `levels` shares: proportional to the profile at this budget. `two`: heads in order of their shares keep everything
    while the budget lasts; the others keep what `select` protects, and one is in between. No head gets less than its
    protected slots under equal budgets, or more than the prompt's tokens; the sum is the model's budget. If everything
    fits, heads stay equal. `even` is the part of the budget that is split evenly first (HeadKV). `profile` names a file
    of `kvlab fit`, read by `make_cache`.
    """

    profile: str = "mini"
    levels: Levels = "shares"
    select: Selector = field(default_factory=LowestScore)
    known: HeadShares | None = None
    even: float = 0.0

    def head_budgets(self, view: View) -> Tensor | None:
        """This layer's budgets (B, H); reads lengths on the host."""
        if self.known is None:
            return None
        protected = (protected_by(self.select, view) & view.slots.valid).sum(-1).amax(-1).tolist()
        rows = zip(view.budget[:, 0].tolist(), view.tokens_seen.tolist(), protected, strict=True)
        mine = []
        for average, tokens, least in rows:
            shares = self.known.at(min(average / tokens, 1.0))
            shares = shares * (1 - self.even) + self.even / shares.numel()
            total = average * shares.numel()
            if average >= tokens:
                slots = torch.full_like(shares, average, dtype=torch.int64)  # (L, H)
            elif self.levels == "shares":
                slots = torch.tensor(proportional(shares.flatten().tolist(), total, least, tokens)).view_as(shares)
            else:
                order = shares.flatten().argsort(descending=True, stable=True)
                spare = total - least * shares.numel()
                more = (spare - (tokens - least) * torch.arange(shares.numel())).clamp(0, tokens - least)
                slots = (least + torch.empty_like(more).scatter_(0, order, more)).view_as(shares)
            mine.append(slots[view.layer_idx].tolist())
        return torch.tensor(mine, device=view.budget.device)
