"""KVzip: attention from a second pass over the context."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kvlab.core.contract import AttentionPass, Capabilities, SecondPassRequest, Slots
from kvlab.core.methods.scorers.wrapper import PromptScorer

Over = Literal["max", "rms", "mean"]
LOOKED = "looked"  # a head's own score


@dataclass(frozen=True)
class SecondPassAttention(PromptScorer):
    """Score_j = most attention slot j gets from any query of the second pass, over the group too (KVzip, eq. 2).

    Attention is over the whole prompt and the second pass so far. `over` rms is the root of the sum of squares (mean
    over the group; Attention Matching's, up to a constant per row), mean the sum. With `window`, a slot's score is at
    least its largest attention from the prompt's last `window` queries. Later tokens keep score 0, unless decisions
    while decoding use the newest `recalls` queries, which then count like the second pass's.
    """

    costs_no_step: ClassVar[bool] = True

    over: Over = "max"
    window: int = 0
    second_pass: SecondPassRequest = field(default_factory=SecondPassRequest)
    recalls: int = 0

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            prompt_rows=lambda tokens: max(self.window, 1),
            recalls=self.recalls,
            second_pass=self.second_pass,
            recall=self.recall,
        )

    @property
    def second_pass_statistic(self) -> Literal["largest", "squares"] | None:
        """What `score_second_pass` asks for, so that attention computes it on its way."""
        statistics: dict[Over, Literal["largest", "squares"] | None] = {
            "max": "largest",
            "rms": "squares",
            "mean": None,
        }
        return statistics[self.over]

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 from the window on the first prefill; 0 without one."""
        return {"score": layer_pass.column_max(self.window)} if first and self.window else {}

    def score_second_pass(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 after another pass of the second pass."""
        count = slots.score.shape[-1]
        if self.over == "max":
            return {"score": torch.maximum(slots.score, layer_pass.column_max(slots=count)[..., :count])}
        if self.over == "mean":
            return {"score": slots.score + layer_pass.column_mass()[..., :count]}
        squares = (
            layer_pass.column_rms(slots=count)[..., :count].square() * layer_pass.rows_seen()[..., :1]
        )  # all rows see the first slot
        return {"score": (slots.score.square() + squares).sqrt()}

    def recall(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 including the newest queries."""
        if self.over == "max":
            return most_looked_at(slots, layer_pass, self.recalls)
        mass = layer_pass.recalled_mass(slots.position, self.recalls)  # (B, H, G, r, S)
        if self.over == "mean":
            return {"score": slots.score + mass.mean(2).sum(2)}
        return {"score": (slots.score.square() + mass.square().mean(2).sum(2)).sqrt()}


def most_looked_at(slots: Slots, layer_pass: AttentionPass, rows: int) -> dict[str, Tensor]:
    """`score` (B, H, S) float32 raised to the most attention a slot gets from the newest `rows` queries."""
    mass = layer_pass.recalled_mass(slots.position, rows)  # (B, H, G, r, S)
    return {"score": torch.maximum(slots.score, mass.amax((2, 3)))}


@dataclass(frozen=True)
class LayerAttention(SecondPassAttention):
    """A slot's score plus the mean of the scores of its token over the layer's heads (KVCompose)."""

    state: Mapping[str, float] = field(default_factory=lambda: {LOOKED: 0.0}, hash=False, kw_only=True)

    @property
    def capabilities(self) -> Capabilities:
        """The sum is derived from the head's own score."""
        return replace(super().capabilities, rate=self.rate, recall=None)

    def rate(self, slots: Slots) -> Tensor:
        return slots.extra[LOOKED] + slots.extra[LOOKED].mean(1, keepdim=True)

    def score_second_pass(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        """The head's own score (B, H, S) float32 after another pass of the second pass."""
        head_slots = slots.with_columns(score=slots.extra[LOOKED])
        return {LOOKED: super().score_second_pass(head_slots, layer_pass)["score"]}
