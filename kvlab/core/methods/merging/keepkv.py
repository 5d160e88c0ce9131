"""KeepKV: merging that keeps the attention output unchanged."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.parts import Allocator
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.cosine import CosineDecay
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.ema import EmaScore
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.log_mass import SPACE_HELP, MassRule, Space
from kvlab.core.methods.settlers.merging.nearest_merge import GroupRule, NearestMerge

# In the code a share of .2 is recent and equal in all layers, the rest falls to .8 of itself: to .84 overall.
LAYERS: dict[str, Allocator] = {
    "uniform": Uniform(),
    "cosine": CosineDecay(),
    "cosine-code": CosineDecay(0.84, "direct"),
}


@register
class KeepKV(Method):
    """Merges victims into their most similar kept slot, with votes so that the slot keeps their attention.

    The key rule `paper` is equation 7 with a guard, `votes` what the authors' code does. The default, `bias`, keeps the
    mean key and puts the correction of equation 7 into the slot's log mass. With `predict="current"` both are exact at
    the present query of a query head that does not share slots; if several share slots, `bias` is fitted to all of them
    by least squares (docs/grouped-queries.md). With `predict="ema"` (paper and default) a merge is made for later
    queries and exact for none: for 20 random slots merged into 8 the output is off by .54.
    """

    name: ClassVar[str] = "keepkv"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "KeepKV"
    paper, presets, reasons = published(__file__)

    rule: Literal["bias", "paper", "min-norm", "votes"] = Field("bias", description="key and log mass of a merged slot")
    threshold: float = Field(0.8, ge=-1, le=1, description="cosine below which a token is evicted instead of merged")
    predict: Literal["ema", "current"] = Field(
        "ema", description="logits used for merging: predicted, or the current query's"
    )
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: float = Field(0.8, gt=0, lt=1, description="share of the budget for the most recent tokens")
    alpha: float = Field(0.9, gt=0, lt=1, description="decay of the score average")
    window: int = Field(32, ge=1, description="last prompt queries that initialize the score average")
    guard: float = Field(0.5, gt=0, description="rule `paper`: largest accepted change of the key's scale")
    space: Space = Field("rotated", description=SPACE_HELP)
    mass: Literal["rule"] | MassRule = Field(
        "rule",
        description="log mass of a merged slot: the key rule's own, or none, alpha * log(votes), votes, exact, bounded",
    )
    mass_alpha: float = Field(0.6, ge=0, le=1, description="mass `alpha`: its factor")
    layers: Literal["uniform", "cosine", "cosine-code"] = Field(
        "uniform", description="layer budgets: equal, PyramidInfer's, or as in the authors' code"
    )
    prefill_order: Literal["evict-first", "merge-first"] = Field(
        "evict-first", description="victims of a prompt: the least important slots, or mergeable slots first"
    )
    group: GroupRule | None = Field(
        None,
        description="query heads a merge is fitted to if they share a slot: all, by least squares (rule `bias`), or "
        "the group as one query, by the mean of its logits or of their exp; none: least-squares with rule `bias` at "
        "the current query, mean-logit with the other rules there, mean-exp for predicted scores",
    )
    per_head_mass: bool = Field(False, description="a log mass per query head of a group: one more number each")

    @model_validator(mode="after")
    def _check_exactness(self) -> KeepKV:
        if self.mass != "rule" and self.rule in ("paper", "min-norm"):
            raise ValueError(f"rule {self.rule!r} adapts the key to its own log mass, so mass must be 'rule'")
        return self

    @model_validator(mode="after")
    def _check_group(self) -> KeepKV:
        if self.group == "least-squares" and self.rule != "bias":
            raise ValueError(f"rule {self.rule!r} supports one query only; group 'least-squares' needs rule 'bias'")
        if self.per_head_mass and (self.rule != "bias" or self._group != "least-squares" or self.mass != "rule"):
            raise ValueError("per_head_mass needs the least-squares fit of rule 'bias': do not set group and mass")
        return self

    @property
    def _group(self) -> GroupRule:
        if self.group is not None:
            return self.group
        if self.per_head_mass or (self.rule == "bias" and self.predict == "current"):
            return "least-squares"
        return "mean-logit" if self.predict == "current" else "mean-exp"

    def pipeline(self) -> Pipeline:
        raw = self.rule in ("paper", "min-norm")
        return Pipeline(
            EmaScore(self.alpha, self.window, raw),
            LAYERS[self.layers],
            LowestScore(sinks=self.sinks, recent=self.recent),
            NearestMerge(
                self.rule,
                self.threshold,
                self.predict,
                self.alpha,
                self.guard,
                self.space,
                self.mass,
                self.mass_alpha,
                prefill_order=self.prefill_order,
                group=self._group,
                window=self.window,
                per_head_mass=self.per_head_mass,
            ),
        )
