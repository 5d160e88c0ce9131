"""NACL: most kept slots by score, the rest drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities, Victims
from kvlab.core.contract.token_draws import uniform_draws
from kvlab.core.contract.view import View
from kvlab.core.methods.selectors.top_k import LowestScore

TINY = 2.0**-26  # half of the least difference of two draws, for the logarithm


@dataclass(frozen=True)
class SampledRest:
    """Apply `inner` to scores by which the share `drawn` of a head's budget goes to slots drawn without replacement.

    Beside protected slots the highest scores stay; of all others a slot is drawn with a probability that is
    proportional to exp(score / `temperature`): the highest of score / temperature + Gumbel noise. The noise depends on
    seed, layer, head and position only, never on the batch.
    """

    inner: LowestScore = field(default_factory=LowestScore)
    drawn: float = 0.1
    temperature: float = 1.0

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(protected=self.protected, sinks=self.inner.sinks)

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The inner selector's, by these scores."""
        slots = view.slots
        score, safe = slots.score.nan_to_num(nan=0.0), self.protected(view) & slots.valid
        standing = score.masked_fill(safe, torch.inf).masked_fill(~slots.valid, -torch.inf)
        rank = slots.lowest(standing, standing.shape[-1]).argsort(-1)  # from the lowest
        room = (view.budget - safe.sum(-1)).clamp_min(0)
        by_chance = (view.budget * self.drawn).long().minimum(room)
        won = rank >= rank.shape[-1] - (view.budget - by_chance)[..., None]
        seed = 0 if view.generator is None else view.generator.initial_seed()
        noise = -(-(uniform_draws(seed, slots.position) + TINY).log()).log()
        weighed = torch.where(won, torch.inf, score / self.temperature + noise)
        return self.inner.victims(replace(view, slots=replace(slots, score=weighed)), excess, most, barred)

    def protected(self, view: View) -> Tensor:
        return self.inner.protected(view)
