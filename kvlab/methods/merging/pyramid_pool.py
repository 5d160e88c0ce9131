"""PyramidPool: the oldest tokens pooled in windows, deeper layers with less."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from kvlab.methods.allocators.linear import Linear
from kvlab.methods.base import Method, register
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.scorers.attention.accumulated import AccumulatedAttention
from kvlab.methods.scorers.contents.none import Recency
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.mass import MASS_HELP, SPACE_HELP, Mass, MassRule, Space
from kvlab.methods.settlers.pooling.pool import Pool, Repool

_PUBLISHED = {
    "variant": ("paper", "section 3.1 prints the slope k / m; section 3.2 averages the pairs of a window"),
    "repool": ("literal", "section 3.2: a fixed window merges the least recent tokens as more are generated"),
    "sinks": (4, "table 2, figures 6 to 8"),
    "mass": ("none", "section 3.2 gives a pooled pair no weight of its own"),
    "space": ("rotated", "section 5.2 leaves positions of pooled pairs to later work"),
}
_NOT_GIVEN = (
    "Its budget is the first layer's (256 to 4096), 64 on average in table 2; the window and the number of recent "
    "tokens that are not pooled are not given."
)


@register
class PyramidPool(Method):
    """Pools windows of the oldest tokens into single slots, again and again, with budgets that shrink with depth.

    Variant `fixed` counts a pooled slot for all the tokens it stands for when it is pooled again, and gives the last
    layer 1 / beta of the first; `paper` is as printed. Both add up to the budget asked for. Pooling `best` and
    `max-norm` keep one token of each window and evict the others; `mean` and `max` merge. A pooled slot counts as one
    token in attention, as published; `mass` changes that for means.
    """

    name: ClassVar[str] = "pyramid-pool"
    family: ClassVar[str] = "pooling"
    title: ClassVar[str] = "PyramidPool"
    paper: ClassVar[str] = ""

    presets: ClassVar = {
        "paper": Preset(
            "the setting of table 2, with figure 6's pyramid",
            _PUBLISHED
            | {
                "pooling": ("best", "table 2, figures 7 and 8; figure 6 compares it with mean and max"),
                "beta": (4.0, "figure 6; table 2 does not say"),
            },
            _NOT_GIVEN,
        ),
        "figure-8": Preset(
            "the rectangular cache of figure 8",
            _PUBLISHED | {"pooling": ("best", "figure 8"), "beta": (1.0, "figure 8: pyramid compression ratio 1")},
            _NOT_GIVEN,
        ),
    }
    # Measured on mini: KL to the full cache over the 64 tokens after prompts of 700, mean of 8, at 10 / 20 / 40 %.
    reasons: ClassVar = {
        "variant": "as printed a recent window weighs as much as all that its mean is pooled with, and the last layer "
        "never gets L_0 / beta",
        "pooling": "mini: best .163 / .101 / .048, mean .291 / .211 / .124, max .825 / .532 / .177",
        "window": "not given; mini: 2 .164 / .117 / .045, 4 .163 / .101 / .048, 8 .169 / .110 / .048",
        "repool": "literal pooling of the oldest ends in two pools, one of them for most of the text; mini: graded "
        ".163 / .101 / .048, literal .200 / .108 / .044. For means literal is closer (.237 / .185 / .085, graded "
        ".291 / .211 / .124): the slots of lost pools go to recent tokens",
        "beta": "figure 6's; 1 is closer on mini (.147 / .088 / .041), but is no pyramid",
        "recent": "not given; mini: .25 .168 / .101 / .062, .5 .163 / .101 / .048, .75 .190 / .115 / .049",
        "alpha": "zsmerge's; only felt with mass `alpha`",
    }

    variant: Literal["fixed", "paper"] = Field("fixed", description="weights of repeated means, and the slope's end")
    pooling: Literal["mean", "max", "max-norm", "best"] = Field("best", description="what a window becomes")
    window: int = Field(4, ge=2, description="slots pooled into one")
    repool: Repool = Field(
        "graded", description="while decoding: neighbours with the fewest tokens for their age, or oldest windows"
    )
    beta: float = Field(4.0, ge=1, description="budget of the first layer over that of the last")
    sinks: int = Field(4, ge=0, description="first tokens that are never pooled")
    recent: float = Field(0.5, gt=0, lt=1, description="share of the budget for recent tokens that are not pooled")
    mass: MassRule = Field("none", description=MASS_HELP)
    alpha: float = Field(0.6, ge=0, le=1, description="mass `alpha`: its factor")
    space: Space = Field("rotated", description=SPACE_HELP)

    @model_validator(mode="after")
    def _only_means_merge(self) -> PyramidPool:
        if self.pooling != "mean" and (self.mass != "none" or self.space != "rotated"):
            raise ValueError("mass and space are choices for pooling 'mean' only; add pooling=mean")
        return self

    def pipeline(self) -> Pipeline:
        """Positions (or accumulated attention for `best`), linear layer budgets, pooling of the oldest."""
        fixed = self.variant == "fixed"
        return Pipeline(
            AccumulatedAttention() if self.pooling == "best" else Recency(),
            Linear(self.beta, printed=not fixed),
            LowestScore(sinks=self.sinks, recent=self.recent),
            Pool(self.pooling, self.window, fixed, Mass(self.mass, self.alpha), self.space, self.repool),
        )
