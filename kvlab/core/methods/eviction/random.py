"""Random eviction: the control of every comparison."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import NONE, AttentionPass, Capabilities, LowestScore, Pipeline, Slots, uniform_draws
from kvlab.core.contract.method import Method, PromptTokens, Recent, Sinks, register
from kvlab.core.methods.scorers.time_stamps import OF_PROMPT


@dataclass(frozen=True)
class Draws:
    """Score = a number that is drawn for each token and head from the layer's seed.

    `draws` "once": a token keeps its number, so what stays is at all times a uniform sample of the text so far
    (reservoir sampling). "anew": each decision while decoding draws again, so of K drawn slots and W newer ones an old
    token survives E decisions with probability (K / (K + W))^E. Draws depend on seed, layer, head, position and, if
    anew, length of the text, never on the batch. With `prompt` "keep" the prompt's slots score above all others.
    """

    draws: Literal["once", "anew"] = "once"
    prompt: Literal["compete", "keep"] = "compete"
    every_step: bool = False
    needs_hidden_states: bool = False

    @property
    def state(self) -> Mapping[str, float]:
        """Which slots are the prompt's, if those are kept."""
        return {OF_PROMPT: False} if self.prompt == "keep" else {}

    @property
    def capabilities(self) -> Capabilities:
        """A token's number can be drawn at any time."""
        return NONE if self.draws == "once" else Capabilities(recall=self.recall)

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32, in [0, 1), of the prompt's slots 1 to 2 if they are kept."""
        if not first and self.draws == "anew":
            return {}
        marked = {OF_PROMPT: torch.ones_like(slots.valid)} if first and self.prompt == "keep" else {}
        return marked | self._drawn(slots.with_columns(extra=slots.extra | marked), layer_pass, slots.position)

    def recall(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        """`score` (B, H, S) float32, drawn for this length of the text."""
        newest = slots.position.masked_fill(~slots.valid, -1).amax((1, 2))[:, None, None].long()
        return self._drawn(slots, layer_pass, slots.position + (newest << 32))

    def _drawn(self, slots: Slots, layer_pass: AttentionPass, counter: Tensor) -> dict[str, Tensor]:
        seed = 0 if layer_pass.generator is None else layer_pass.generator.initial_seed()
        score = uniform_draws(seed, counter)
        if self.prompt == "keep":
            newest = slots.position.amax(-1, keepdim=True)
            score = torch.where(slots.extra[OF_PROMPT], 1 + slots.position / (newest + 1), score)
        return {"score": score}


@register
class Random(Method):
    """Keeps tokens at random, in each head others: a method that does no better has learned nothing from the text.

    The seed is the cache's. kvpress has the same control (random_press.py) and draws anew at every decision; here a
    token keeps its number, so that what stays is at all times a uniform sample. The rule of Random Attention
    (arXiv 2609.03430) is `prompt=keep:draws=anew:recent=64` with a `buffer`: prompt and newest tokens stay, and a fresh
    draw of what else was generated. The budget holds all three; `buffer` tokens come on top before each decision,
    counted from the end of the prompt.
    """

    name = "random"
    family = "eviction"
    title = "Random"
    added = ("prompt", "draws", "buffer")
    paper = ""

    sinks: Sinks = 0
    recent: Recent = 1
    prompt: PromptTokens = "compete"
    draws: Literal["once", "anew"] = Field("once", description="a token's number: once, or anew at each decision")
    buffer: int = Field(0, ge=0, description="generated tokens kept before each decision; 0: none")

    def pipeline(self) -> Pipeline:
        score = Draws(self.draws, self.prompt)
        buffer = max(self.buffer, 1) if self.draws == "anew" else self.buffer  # scores are drawn for a lot of tokens
        return Pipeline(score, select=LowestScore(self.sinks, self.recent), buffer=buffer)
