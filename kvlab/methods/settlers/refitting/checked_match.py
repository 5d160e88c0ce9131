"""exactmerge 2: what stays is refitted where queries that were held back gain by it, the worst served of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kvlab.methods.pipeline import Selector
from kvlab.methods.plan import Plan
from kvlab.methods.rehearsal import Rehearsal
from kvlab.methods.settlers.refitting.matching import FALLBACK, TINY, MatchAttention, attention_to, observe, shift_of
from kvlab.methods.settlers.residuals.observed import Observed
from kvlab.methods.view import View

Fit = Literal["none", "values", "both"]


@dataclass(frozen=True)
class CheckedMatch:
    """Eviction, and for each head the one of `fits` that serves held-back queries best.

    `values` and `both` (log mass too) are `MatchAttention`'s with a protected core. Each is fitted on every second of
    the reference queries; of the others the share `worst` with the largest relative output errors is looked at, and the
    fit with the lowest mean there is taken, head by head, and made again on all of them.
    """

    fits: tuple[Fit, ...] = ("none", "values")
    worst: float = 0.1
    references: int = 256
    window: int = 32
    window_weight: float = 4.0
    ridge: float = 0.1
    untouched: float = 0.1
    box: float = 3.0
    rehearsal: Rehearsal | None = None
    state: Mapping[str, float] = field(default_factory=dict)
    fills_budget: ClassVar[bool] = True
    mass_of_votes: ClassVar[None] = None  # a slot's own

    @property
    def merges(self) -> bool:
        """Whether slots need a log mass of their own."""
        return "both" in self.fits

    def prompt_rows(self, tokens: int) -> int:
        """The window's."""
        return self.window or FALLBACK

    def settle(self, view: View, select: Selector) -> Plan:
        """Evictions, log mass and values of what stays; while decoding nothing but evictions."""
        slots = view.slots
        victims = select.victims(view, view.excess(), view.most_excess)
        keep, lost = victims.keep(slots.valid), victims.votes(slots.votes)
        if view.phase == "decode" or self.fits == ("none",):
            return Plan(keep, lost=lost)
        observed = observe(view, self.references, self.window, self.window_weight)
        fitted = observed.only(~observed.held_back)
        if len(self.fits) == 1:
            return self._plan(view, observed, keep, lost, [torch.ones_like(keep[..., 0])])
        errors = [self._error(view, observed, keep, *self._fit(fit, view, fitted, keep)) for fit in self.fits]
        best = torch.stack(errors, -1).argmin(-1)  # (B, H)
        return self._plan(view, observed, keep, lost, [best == place for place in range(len(self.fits))])

    def _plan(self, view: View, observed: Observed, keep: Tensor, lost: Tensor | None, taken: list[Tensor]) -> Plan:
        """The plan in which the heads `taken` (B, H) bool of each fit have it, made on all queries."""
        slots = view.slots
        weight, amount = self._fit("none", view, observed, keep)
        for mine, fit in zip((heads[..., None] for heads in taken), self.fits, strict=True):
            own_weight, own_amount = self._fit(fit, view, observed, keep)
            weight, amount = torch.where(mine, own_weight, weight), torch.where(mine[..., None], own_amount, amount)
        log_mass = torch.where(keep, slots.log_mass + weight.log(), slots.log_mass) if self.merges else None
        return Plan(keep, lost=lost, value_shift=shift_of(view, keep, amount), log_mass=log_mass)

    def _fit(self, fit: Fit, view: View, observed: Observed, keep: Tensor) -> tuple[Tensor, Tensor]:
        """(mass weights (B, H, S), what is added to values (B, H, S, d))."""
        slots = view.slots
        weight = torch.ones_like(slots.score)
        if fit == "none":
            return weight, torch.zeros_like(slots.values, dtype=torch.float32)
        match = MatchAttention(ridge=self.ridge, untouched=self.untouched, box=self.box)
        weight = match.mass_weights(observed, keep) if fit == "both" else weight
        return weight, match.amounts(slots, observed, keep, weight)

    def _error(self, view: View, observed: Observed, keep: Tensor, weight: Tensor, amount: Tensor) -> Tensor:
        """(B, H): mean relative output error of the worst served queries that were held back."""
        output = attention_to(observed, keep, weight) @ (view.slots.values.float() + amount)
        error = (output - observed.output).norm(dim=-1) / observed.output.norm(dim=-1).clamp_min(TINY)
        judges = (observed.weight > 0) & observed.held_back  # (B, 1, N): a padded row has fewer
        most = (self.worst * judges.sum(-1, keepdim=True)).floor().clamp_min(1)
        ranked = (error * judges).sort(dim=-1, descending=True).values
        taken = torch.arange(ranked.shape[-1], device=ranked.device) < most
        return (ranked * taken).sum(-1) / most[..., 0]
