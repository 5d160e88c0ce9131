"""EpiKV: while generating, keep the tokens at which the model's residual stream changed most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.contract.ties import round_to_step
from kvlab.core.contract.token_scores import ROUNDING, ResidualRule
from kvlab.core.contract.view import Seen, Slots
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.prompt_scorer import PromptScorer
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict

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


@register
class EpiKV(Method):
    """Evicts, in all layers and heads alike, the token with the smallest change of the residual stream (epiphany).

    Changes at a depth where they go with important tokens count for a token, and those at a later depth against it;
    both as z-scores among the newest tokens, so that neither grows with the text. No attention is read. Every layer
    decides by the scores of the tokens before its pass, the newest tokens are protected, so all layers choose alike.
    Where prompt tokens compete, all layers hold the whole prompt until its last one has read it.
    """

    name: ClassVar[str] = "epikv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "EpiKV"

    early: float = Field(11 / 32, ge=0, le=1, description="share of the layers after which changes count for a token")
    late: float = Field(22 / 32, ge=0, le=1, description="share of the layers after which changes count against it")
    window: int = Field(64, ge=2, le=4096, description="newest tokens that a change is compared with")
    recent: int = Field(128, ge=1, description="last tokens that always stay, at most a quarter of the budget")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    prompt: Literal["compete", "keep"] = Field(
        "compete", description="prompt tokens compete, or stay as long as the budget holds them"
    )

    paper: ClassVar[str] = "https://arxiv.org/abs/2606.26472"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            (
                "the paper's EpiKV, in the numbers of the authors' code (DetrendendHSVarianceEviction; "
                "github.com/stevenkolawole/epiphany-kv-cache, src/eviction.py, d424208)"
            ),
            {
                "early": (0.34375, "band_a_layer = 10: after eleven of the 32 layers"),
                "late": (0.6875, "band_b_layer = 21: after 22 of the 32 layers"),
                "window": (64, "window"),
                "recent": (128, "keep_recent_k, at most a quarter of cache_size"),
                "sinks": (0, "the prompt stays whole, and the first tokens with it"),
                "prompt": ("keep", "keep_mask[:prefill_len]"),
            },
            beyond=(
                "Where the budget leaves less room beside the prompt than recent tokens take, the code keeps the "
                "prompt and drops recent tokens by chance, at worst all of them; here recent tokens come first. This "
                "is EpiKV-Flat; the segments of EpiKV-Seg are not here."
            ),
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "early": "the code's layer, scaled to the model's depth",
        "late": "the code's layer, scaled to the model's depth",
        "sinks": (
            "StreamingLLM's; the code keeps the whole prompt and its first tokens with it, and the score sees no "
            "attention"
        ),
        "prompt": "a budget here is often a share of the prompt, which then has to give up tokens itself",
    }

    def pipeline(self) -> Pipeline:
        score = Epiphany(early=self.early, late=self.late, window=self.window, prompt=self.prompt)
        return Pipeline(score, Uniform(), LowestScore(self.sinks, self.recent, most=0.25), Evict())
