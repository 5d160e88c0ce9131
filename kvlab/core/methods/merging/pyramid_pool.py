"""PyramidPool: pool the oldest tokens in windows, with smaller budgets in deeper layers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.linear import Linear
from kvlab.core.methods.scorers.attention.accumulated_attention import AccumulatedAttention
from kvlab.core.methods.scorers.key_value.recency import Recency
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.log_mass import MASS_HELP, SPACE_HELP, Mass, MassRule, Space
from kvlab.core.methods.settlers.pooling.pool import Pool, Repool


@register
class PyramidPool(Method):
    """Repeatedly pools windows of the oldest tokens into single slots, with budgets that fall with depth.

    Variant `fixed` weights a pooled slot by all its tokens when it is pooled again, and gives the last layer 1 / beta
    of the first; `paper` is as printed. Both sum to the requested budget. Pooling `best` and `max-norm` keep one token
    of each window and evict the others; `mean` and `max` merge. A pooled slot counts as one token in attention, as
    published; `mass` changes that for means.
    """

    name: ClassVar[str] = "pyramid-pool"
    family: ClassVar[str] = "pooling"
    title: ClassVar[str] = "PyramidPool"
    paper, presets, reasons = published(__file__)

    variant: Literal["fixed", "paper"] = Field("fixed", description="weights of repeated means, and end of the slope")
    pooling: Literal["mean", "max", "max-norm", "best"] = Field("best", description="what a window becomes")
    window: int = Field(4, ge=2, description="slots pooled into one")
    repool: Repool = Field(
        "graded", description="while decoding: pool neighbours with the fewest tokens for their age, or oldest windows"
    )
    beta: float = Field(4.0, ge=1, description="ratio of the first layer's budget to the last layer's")
    sinks: int = Field(4, ge=0, description="first tokens that are never pooled")
    recent: float = Field(0.5, gt=0, lt=1, description="share of the budget for recent tokens that are not pooled")
    mass: MassRule = Field("none", description=MASS_HELP)
    alpha: float = Field(0.6, ge=0, le=1, description="mass `alpha`: its factor")
    space: Space = Field("rotated", description=SPACE_HELP)

    @model_validator(mode="after")
    def _check_pooling(self) -> PyramidPool:
        if self.pooling != "mean" and (self.mass != "none" or self.space != "rotated"):
            raise ValueError("mass and space need pooling 'mean': add pooling=mean")
        return self

    def pipeline(self) -> Pipeline:
        fixed = self.variant == "fixed"
        return Pipeline(
            AccumulatedAttention() if self.pooling == "best" else Recency(),
            Linear(self.beta, printed=not fixed),
            LowestScore(sinks=self.sinks, recent=self.recent),
            Pool(self.pooling, self.window, fixed, Mass(self.mass, self.alpha), self.space, self.repool),
        )
