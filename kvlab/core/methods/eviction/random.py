"""Random eviction: the control of every comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.numerics import uniform_draws
from kvlab.core.contract.parts import NONE, Capabilities
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.view import AttentionPass, Slots
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.wrapper import PromptScorer
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.evict import Evict


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

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32, in [0, 1)."""
        seed = 0 if layer_pass.generator is None else layer_pass.generator.initial_seed()
        return {"score": uniform_draws(seed, slots.position)}


@register
class Random(Method):
    """Keeps tokens at random, in each head others: a method that does no better has learned nothing from the text.

    The seed is the cache's. kvpress has the same control (random_press.py) and draws anew at every decision; here a
    token keeps its number, so that what stays is a uniform sample of the text at all times.
    """

    name: ClassVar[str] = "random"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "Random"
    paper: ClassVar[str] = ""

    sinks: int = Field(0, ge=0, description="first tokens that always stay")
    recent: int = Field(1, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        return Pipeline(Draws(), Uniform(), LowestScore(self.sinks, self.recent), Evict())
