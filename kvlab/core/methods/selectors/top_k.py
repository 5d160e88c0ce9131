"""Evict the lowest scores, except sinks and recent tokens."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities, Victims
from kvlab.core.contract.view import View


@dataclass(frozen=True)
class Oldest:
    """Keep the first `sinks` tokens and a sliding window, whatever their scores (StreamingLLM, CaM).

    A fraction of sinks is a share of the head's budget, rounded up.
    """

    sinks: float | int = 4

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(protected=self.protected)

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The `excess` (B, H) oldest unprotected slots."""
        slots = view.slots
        latest = torch.iinfo(slots.position.dtype).max
        order = fit(view, slots.position, self.protected(view), barred, latest)
        return Victims.lowest(view, order, excess, most, latest)

    def window(self, view: View) -> int:
        """Number of slots that every head keeps after its sinks, at least."""
        sinks = self.sinks if isinstance(self.sinks, int) else math.ceil(view.largest_budget * self.sinks)
        return view.smallest_budget - sinks

    def protected(self, view: View) -> Tensor:
        """Protected slots (B, H, S): sinks, and the newest token."""
        return LowestScore(sinks=self.sinks).protected(view)


ROUNDING = 1e-9  # tolerance, so that integer products are not rounded up
# Recent tokens, which text that goes on needs, must not displace what a question may ask for: few of the first slots.
FIRST_SLOTS = 96
ONE_IN_FIRST = 16
ONE_IN_OTHERS = 4
Limit = float | Literal["growing"]


@dataclass(frozen=True)
class LowestScore:
    """Protect `sinks` first and `recent` last tokens; fractions are shares of the head's budget.

    A share of sinks is rounded up, one of recent tokens down. `of` "text" makes `recent` a share of the text seen so
    far: 1 + int(recent * tokens). `most` limits recent tokens to that share of the head's budget; `growing` is a
    sixteenth of its first 96 slots and a quarter of the others.

    If the budget cannot hold both, recent tokens take precedence over sinks: the newest token is always kept.
    """

    sinks: float | int = 0
    recent: float | int = 1
    of: Literal["budget", "text"] = "budget"
    most: Limit | None = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(protected=self.protected)

    @property
    def bounds(self) -> Callable[[View, Tensor], tuple[Tensor, Tensor]] | None:
        """`bounds_of`, if a budget alone says what is protected."""
        return self.bounds_of if self.of == "budget" else None

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The `excess` (B, H) lowest unprotected slots; of equal scores the older token leaves first."""
        order = fit(view, view.slots.score.nan_to_num(nan=0.0), self.protected(view), barred, torch.inf)
        return Victims.lowest(view, order, excess, most, torch.inf)

    def protected(self, view: View) -> Tensor:
        recent, sinks = self._bounds(view) if self.of == "text" else self.bounds_of(view, view.budget)
        position = view.slots.position
        late = position >= (view.tokens_seen[:, None] - recent)[..., None]
        return late if self.sinks == 0 else late.logical_or_(position < sinks)

    def bounds_of(self, view: View, budget: Tensor) -> tuple[Tensor, Tensor]:
        """(recent tokens (B, H), sinks (B, H, 1)) protected under `budget` (B, H), cached."""
        view = view if view.budget is budget else replace(view, budget=budget)
        return view.of_budget(self, lambda: self._bounds(view))

    def _bounds(self, view: View) -> tuple[Tensor, Tensor]:
        """(recent tokens (B, H), sinks (B, H, 1)) protected."""
        recent = self._recent(view)
        if self.most is not None:
            recent = recent.minimum(_most_recent(view.budget, self.most))
        recent = recent.clamp_min(1).minimum(view.budget)
        return recent, (view.budget - recent).minimum(self._sinks(view.budget))[..., None]

    def _recent(self, view: View) -> Tensor:
        if not isinstance(self.recent, float):
            return torch.full_like(view.budget, self.recent)
        if self.of == "text":
            return (1 + (view.tokens_seen.double() * self.recent).long())[:, None].expand_as(view.budget)
        return (view.budget * self.recent).long()

    def _sinks(self, budget: Tensor) -> Tensor:
        if isinstance(self.sinks, float):
            return (budget.double() * self.sinks - ROUNDING).ceil().long()
        return torch.full_like(budget, self.sinks)


def _most_recent(budget: Tensor, most: Limit) -> Tensor:
    """Most recent tokens (B, H) that are protected under `budget` (B, H)."""
    if not isinstance(most, str):
        return (budget * most).long()
    first = budget.clamp_max(FIRST_SLOTS)
    return first // ONE_IN_FIRST + (budget - first) // ONE_IN_OTHERS


def fit(view: View, order: Tensor, protected: Tensor, barred: Tensor | None, last: float) -> Tensor:
    """`order` (B, H, S) with `last` for slots that cannot be victims; modifies `protected`."""
    safe = protected if barred is None else protected.logical_or_(barred)
    never = view.of_budget(("never", last), lambda: order.new_full((), last))
    return torch.where(view.slots.valid > safe, order, never)  # valid and not safe
