"""CriticalKV: half of the kept slots by score, the rest by score times the norm of the projected value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities, Victims
from kvlab.core.contract.ties import round_relatively
from kvlab.core.contract.view import View
from kvlab.core.methods.scorers.key_value.value_norm import output_norms
from kvlab.core.methods.selectors.top_k import LowestScore


@dataclass(frozen=True)
class Critical:
    """Apply `inner` to scores that bound how much evicting a slot changes the output.

    The share `first` of a head's budget goes to the highest scores, protected slots first. The rest goes by (score +
    `epsilon`) * ||W_o v||_1, the norm's mean over the group, rounded to .02 % so that repeated tokens have equal ones.
    """

    inner: LowestScore = field(default_factory=LowestScore)
    first: float = 0.5
    epsilon: float = 1e-4

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(protected=self.protected, sinks=self.inner.sinks)

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The inner selector's, by these scores."""
        slots = view.slots
        score = slots.score.nan_to_num(nan=0.0)
        standing = score.masked_fill(self.protected(view), torch.inf).masked_fill(~slots.valid, -torch.inf)
        rank = slots.lowest(standing, standing.shape[-1]).argsort(-1)  # from the lowest
        norm = round_relatively(output_norms(slots.values, view.seen.output_weight(), 1).mean(2))
        won = rank >= rank.shape[-1] - (view.budget * self.first).long()[..., None]
        weighed = torch.where(won, torch.inf, (score + self.epsilon) * norm)
        return self.inner.victims(replace(view, slots=replace(slots, score=weighed)), excess, most, barred)

    def protected(self, view: View) -> Tensor:
        return self.inner.protected(view)
