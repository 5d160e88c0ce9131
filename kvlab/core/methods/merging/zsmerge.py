"""ZSMerge: decayed contribution scores, and residual slots for victims."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.accumulated_attention import AccumulatedAttention
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.log_mass import MASS_HELP, SPACE_HELP, MassRule, Space
from kvlab.core.methods.settlers.residuals.residual import Prefill, ResidualMerge


@register
class ZSMerge(Method):
    """Splits each head's budget into recent, context and residual slots; victims are averaged into residual slots.

    The first tokens are never averaged: in the authors' code a prompt shorter than the budget turns the attention sink
    into the residual slot. With `residual` 0 nothing is merged: plain eviction by the same scores.
    """

    name: ClassVar[str] = "zsmerge"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "ZSMerge"
    paper, presets, reasons = published(__file__)

    recent: float = Field(
        0.4, gt=0, lt=1, description="share of the most recent tokens (B_p) in the budget without residual slots"
    )
    residual: float = Field(
        0.02,
        ge=0,
        description="residual slots (B_r): a share of the budget, at least one; from 1 on: their number; 0: none",
    )
    sinks: int = Field(4, ge=0, description="first tokens that are never merged")
    decay: float = Field(0.98, gt=0, lt=1, description="decay of the contribution score per query (lambda)")
    alpha: float = Field(0.6, ge=0, le=1, description="log mass of a residual slot is alpha * log(votes)")
    similarity: Literal["dot", "cosine", "l2"] = Field("dot", description="how a residual slot is chosen")
    prefill: Prefill = Field(
        "chunk", description="the prompt's residual slots: chunks of text, filled one by one, or around high scores"
    )
    combine_score: Literal["max", "sum"] = Field("max", description="score of a residual slot from its parts")
    mass: MassRule = Field("alpha", description=MASS_HELP)
    space: Space = Field("rotated", description=SPACE_HELP)

    @field_validator("residual")
    @classmethod
    def _check_share_or_number(cls, residual: float) -> float:
        if residual >= 1 and residual != round(residual):
            raise ValueError("residual must be a share below 1, or an integer number of slots")
        return residual

    @model_validator(mode="after")
    def _check_shares(self) -> ZSMerge:
        if self.residual < 1 and self.recent + self.residual > 1:
            raise ValueError(
                f"recent {self.recent:g} and residual {self.residual:g} share one budget: use a sum of at most 1"
            )
        return self

    def pipeline(self) -> Pipeline:
        return Pipeline(
            AccumulatedAttention(decay=self.decay),
            Uniform(),
            LowestScore(sinks=self.sinks, recent=self.recent),
            ResidualMerge(
                self.residual, self.alpha, self.similarity, self.prefill, self.combine_score, self.mass, self.space
            ),
        )
