"""Epiphany score: how much the residual stream changes with a token (EpiKV)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.ties import round_to_step
from kvlab.core.contract.token_scores import ROUNDING, ResidualRule
from kvlab.core.contract.view import Seen, Slots
from kvlab.core.methods.scorers.prompt_scorer import PromptScorer

TINY = 1e-6  # added to the standard deviation, as in the authors' code


@dataclass(frozen=True)
class Epiphany(PromptScorer):
    """Score = z-score of a token's change after `early` of the layers, less the one after `late` of them.

    A z-score is relative to the changes of the last `window` tokens, the token's own included, with the population's
    standard deviation; 0 for the first of them. Rounding must not decide between tokens whose scores are equal by
    construction, such as the first two (0, with z-scores of -1 or 1 at both depths) or those of a text that repeats
    itself: changes that differ from their mean by rounding have z-score 0, and scores are multiples of 2^-16.

    The score of the newest tokens is known only after their pass: until then they rank above all that have one, the
    newest highest. With `prompt` "keep" the prompt's tokens rank highest for good, and the window begins after them.
    """

    early: float = 11 / 32
    late: float = 22 / 32
    window: int = 64
    prompt: Literal["compete", "keep"] = "compete"

    @property
    def capabilities(self) -> Capabilities:
        rule = ResidualRule((self.early, self.late), self.window, self.epiphany, self.prompt == "compete")
        return Capabilities(residual_rule=rule, note=self.note)

    @property
    def most(self) -> float:
        """Above every score: a z-score of n numbers is at most sqrt(n - 1)."""
        return 2 * self.window**0.5

    def epiphany(self, changes: Tensor, real: Tensor) -> Tensor:
        """Scores (B, q) of changes (B, 2, q, window), early and late, where `real` (B, q, window)."""
        early, late = z_score_of_last(changes, real[:, None]).unbind(1)
        return round_to_step(early - late)

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 after a pass of several tokens."""
        known = seen.token_scores
        newest = slots.position.masked_fill(~slots.valid, -1).amax((1, 2))[:, None, None]  # (B, 1, 1)
        newness = (slots.position + 1) / (newest + 2)  # below 1
        if first and self.prompt == "keep":
            return {"score": self.most + 1 + newness}
        if known is None:
            return {"score": self.most + newness}
        unknown = slots.position >= known.known_to[:, None, None]
        return {"score": torch.where(unknown, self.most + newness, known.placed(slots))}

    def note(self, slots: Slots, seen: Seen) -> None:
        """Store the score of the token before the newest one, which its recency protects."""
        if seen.token_scores is not None:
            slots.score.copy_(seen.token_scores.placed(slots))


def z_score_of_last(numbers: Tensor, real: Tensor) -> Tensor:
    """Z-scores (...,) of the last of numbers >= 0 (..., window), among those that are `real`; 0 if it is alone."""
    count = real.sum(-1)
    mean = torch.where(real, numbers, 0.0).sum(-1) / count.clamp_min(1)
    mean = mean[..., None]
    away = torch.where(real, numbers - mean, 0.0)
    away = torch.where(away.abs() > mean * ROUNDING, away, 0.0)
    deviation = (away.square().sum(-1) / count.clamp_min(1)).sqrt()
    return torch.where(count > 1, away[..., -1] / (deviation + TINY), 0.0)
