"""Budgets by a profile of heads that belongs to a model: what a cut over the model gave them on other texts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from kvlab.methods.allocators.model_wide import protected_by
from kvlab.methods.allocators.uniform import EqualHeads
from kvlab.methods.allocators.whole import proportional
from kvlab.methods.core.contract import Selector
from kvlab.methods.core.view import View
from kvlab.methods.selectors.top_k import LowestScore

EVEN = "even"  # the profile of no model: equal heads

Levels = Literal["shares", "two"]


@dataclass(frozen=True)
class HeadShares:
    """What each head got of a model's slots, (layers, heads), at each of some rising budgets (shares of a prompt)."""

    budgets: tuple[float, ...]
    shares: tuple[tuple[tuple[float, ...], ...], ...]

    def at(self, budget: float) -> Tensor:
        """(L, H) shares of all slots at one budget: linear in its logarithm, the nearest beyond the ends."""
        table, logs = torch.tensor(self.shares, dtype=torch.float64), [math.log(b) for b in self.budgets]
        place = min(max(math.log(budget), logs[0]), logs[-1])
        above = next(index for index, log in enumerate(logs) if log >= place)
        below = max(above - 1, 0)
        span = logs[above] - logs[below]
        part = (place - logs[below]) / span if span else 1.0
        mixed = table[below] * (1 - part) + table[above] * part
        return mixed / mixed.sum()


@dataclass(frozen=True)
class HeadProfile(EqualHeads):
    """The model's budget split over its heads by a profile, whatever the text says (DuoAttention, made continuous).

    `levels` shares: in proportion to the profile at this budget. `two`: heads in the order of their shares keep
    everything, as many as the budget has room for; the others keep what `select` protects, and one is between. No head
    has less than what is protected under an equal share, or more than the prompt's tokens; the sum is the model's
    budget. Where all fits, heads stay equal. `profile` names a file of `kvlab profile`, which `make_cache` reads.
    """

    profile: str = "mini"
    levels: Levels = "shares"
    select: Selector = field(default_factory=LowestScore)
    known: HeadShares | None = None

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        """The average, until heads are told apart."""
        return [average] * num_layers

    def head_budgets(self, view: View) -> Tensor | None:
        """(B, H) this layer's budgets; reads lengths on the host."""
        if self.known is None:
            return None
        protected = (protected_by(self.select, view) & view.slots.valid).sum(-1).amax(-1).tolist()
        rows = zip(view.budget[:, 0].tolist(), view.tokens_seen.tolist(), protected, strict=True)
        mine = [self._of_row(*row)[view.layer_idx].tolist() for row in rows]
        return torch.tensor(mine, device=view.budget.device)

    def _of_row(self, average: int, tokens: int, least: int) -> Tensor:
        """(L, H) slots of one row with `average` a head and `least` that are protected."""
        assert self.known is not None
        shares = self.known.at(min(average / tokens, 1.0))
        if average >= tokens:
            return torch.full_like(shares, average, dtype=torch.int64)
        total = average * shares.numel()
        if self.levels == "shares":
            return torch.tensor(proportional(shares.flatten().tolist(), total, least, tokens)).view_as(shares)
        order = shares.flatten().argsort(descending=True, stable=True)
        spare = total - least * shares.numel()
        more = (spare - (tokens - least) * torch.arange(shares.numel())).clamp(0, tokens - least)
        return (least + torch.empty_like(more).scatter_(0, order, more)).view_as(shares)
