"""ZSMerge: decayed contribution scores, and residual slots for victims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
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

    paper: ClassVar[str] = "https://arxiv.org/abs/2503.10714"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "sections 3 and 4.3",
            {
                "sinks": (0, "algorithm 1 protects no first tokens"),
                "decay": (0.98, "sections 3.3 and 4.3"),
                "alpha": (0.6, "section 4.3"),
                "similarity": ("dot", "equation 6"),
                "prefill": ("sequential", "algorithm 1, lines 12 to 16"),
                "mass": ("alpha", "equation 8"),
                "space": ("rotated", "equation 7 averages keys as cached"),
            },
            beyond="The split of the budget (B_p, B_c, B_r) is not given.",
        ),
        "code": Preset(
            "the authors' run on XSum (SusCom-Lab/ZSMerge, scripts/e_rouge.sh)",
            {
                "residual": (1.0, "mergekv.py: cache_dense 1, also in e_rouge.sh"),
                "sinks": (0, "mergekv.py protects no first tokens"),
                "decay": (0.98, "mergekv.py: shrink_factor"),
                "similarity": ("dot", "mergekv.py: metric dot_product"),
                "prefill": ("chunk", "mergekv.py: cache_init"),
                "combine_score": ("max", "mergekv.py: score_update max"),
                "mass": ("alpha", "mergekv.py: scale_factor * log(pos_weight)"),
                "space": ("rotated", "mergekv.py averages keys as cached"),
                "recent": (0.4, "e_rouge.sh: cache_tail 0.4"),
                "alpha": (0.6, "e_rouge.sh: scale_factor 0.6"),
            },
            beyond=(
                "In the code the budget is a share of the model's context window, recent tokens are a share of the "
                "whole budget, and a token that leaves them does not compete at once."
            ),
        ),
        "code-defaults": Preset(
            "the authors' code with its defaults, as in its throughput runs (scripts/e_throughput.sh)",
            {
                "residual": (1.0, "mergekv.py: cache_dense 1, also in e_rouge.sh"),
                "sinks": (0, "mergekv.py protects no first tokens"),
                "decay": (0.98, "mergekv.py: shrink_factor"),
                "similarity": ("dot", "mergekv.py: metric dot_product"),
                "prefill": ("chunk", "mergekv.py: cache_init"),
                "combine_score": ("max", "mergekv.py: score_update max"),
                "mass": ("alpha", "mergekv.py: scale_factor * log(pos_weight)"),
                "space": ("rotated", "mergekv.py averages keys as cached"),
                "recent": (0.1, "mergekv.py: cache_tail 0.1"),
                "alpha": (1.0, "mergekv.py: scale_factor 1"),
            },
            beyond=(
                "In the code the budget is a share of the model's context window, recent tokens are a share of the "
                "whole budget, and a token that leaves them does not compete at once."
            ),
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "recent": "not given in the paper; as in the authors' run on XSum; over 128 tokens .4 .165, .2 .195",
        "residual": "not given by the paper; 0 .0933, .02 .0948, .1 .0977",
        "sinks": "section 4.1 mentions keeping initial tokens; over 128 tokens .165 with and without",
        "alpha": "the paper's, and the authors' run on XSum",
        "prefill": (
            "as in the authors' code; one by one is a loop over the prompt, and not better: .0949 instead of .0948"
        ),
        "combine_score": "as in the authors' code; the paper does not say",
    }

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
