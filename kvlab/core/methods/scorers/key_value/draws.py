"""Random scores: the control of every comparison."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvlab.core.contract.parts import NONE, Capabilities
from kvlab.core.contract.token_draws import uniform_draws
from kvlab.core.contract.view import Seen, Slots
from kvlab.core.methods.scorers.prompt_scorer import PromptScorer


@dataclass(frozen=True)
class Draws(PromptScorer):
    """Score = a number that is drawn once for each token and head from the layer's seed.

    A token keeps its number, so what stays is at all times a uniform sample of the text so far (reservoir sampling).
    Draws depend on seed, layer, head and position only, never on the batch.
    """

    @property
    def capabilities(self) -> Capabilities:
        """A token's number can be drawn at any time."""
        return NONE

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32, in [0, 1)."""
        seed = 0 if seen.generator is None else seen.generator.initial_seed()
        return {"score": uniform_draws(seed, slots.position)}
