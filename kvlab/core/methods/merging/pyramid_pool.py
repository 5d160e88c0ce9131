"""PyramidPool: pool the oldest tokens in windows, with smaller budgets in deeper layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
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

    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "the setting of table 2, with figure 6's pyramid",
            {
                "variant": ("paper", "section 3.1 prints the slope k / m; section 3.2 averages the pairs of a window"),
                "repool": (
                    "literal",
                    "section 3.2: a fixed window merges the least recent tokens as more are generated",
                ),
                "sinks": (4, "table 2, figures 6 to 8"),
                "mass": ("none", "section 3.2 gives a pooled pair no weight of its own"),
                "space": ("rotated", "section 5.2 leaves positions of pooled pairs to later work"),
                "pooling": ("best", "table 2, figures 7 and 8; figure 6 compares it with mean and max"),
                "beta": (4.0, "figure 6; table 2 does not say"),
            },
            beyond=(
                "The paper's budget is the first layer's (256 to 4096), 64 on average in table 2; it gives neither "
                "the window nor the number of recent tokens that are not pooled."
            ),
        ),
        "figure-8": Preset(
            "the rectangular cache of figure 8",
            {
                "variant": ("paper", "section 3.1 prints the slope k / m; section 3.2 averages the pairs of a window"),
                "repool": (
                    "literal",
                    "section 3.2: a fixed window merges the least recent tokens as more are generated",
                ),
                "sinks": (4, "table 2, figures 6 to 8"),
                "mass": ("none", "section 3.2 gives a pooled pair no weight of its own"),
                "space": ("rotated", "section 5.2 leaves positions of pooled pairs to later work"),
                "pooling": ("best", "figure 8"),
                "beta": (1.0, "figure 8: pyramid compression ratio 1"),
            },
            beyond=(
                "The paper's budget is the first layer's (256 to 4096), 64 on average in table 2; it gives neither "
                "the window nor the number of recent tokens that are not pooled."
            ),
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "variant": (
            "as printed a recent window has the same weight as all it is pooled with, and the last layer never gets "
            "L_0 / beta"
        ),
        "pooling": "mini: best .163 / .101 / .048, mean .291 / .211 / .124, max .825 / .532 / .177",
        "window": "not given; mini: 2 .164 / .117 / .045, 4 .163 / .101 / .048, 8 .169 / .110 / .048",
        "repool": (
            "literal pooling of the oldest ends in two pools, one of which covers most of the text; mini: graded .163 "
            "/ .101 / .048, literal .200 / .108 / .044. For means literal is better (.237 / .185 / .085, graded .291 "
            "/ .211 / .124): the slots of lost pools go to recent tokens"
        ),
        "beta": "figure 6's; 1 is better on mini (.147 / .088 / .041), but is no pyramid",
        "recent": "not given; mini: .25 .168 / .101 / .062, .5 .163 / .101 / .048, .75 .190 / .115 / .049",
        "alpha": "zsmerge's; only used with mass `alpha`",
    }

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
