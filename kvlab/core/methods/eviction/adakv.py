"""AdaKV: SnapKV's scores, with a layer's budget split over heads by attention."""

from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.adaptive import FloorRule, HeadAdaptive
from kvlab.core.methods.allocators.pyramid import Pyramid
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.eviction.window_methods import WindowEvicting
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class AdaKV(WindowEvicting):
    """Lets the heads of a layer compete: heads with spread attention get more slots than those with concentrated
    attention.

    Heads differ in length, and each layer's total is exact. With `blend` the floor is mixed into the counts as in the
    code, whose own rounding (`rounded`) misses the total by up to a slot per head; with `guarantee` every head's best
    floor share is safe before the rest compete. `pyramid` adds PyramidKV's layer schedule. Acts once, after the prompt:
    generated tokens are kept in addition to the budget.
    """

    name: ClassVar[str] = "adakv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "AdaKV"
    paper, presets, reasons = published(__file__)

    floor: float = Field(0.2, ge=0, le=1, description="share of the equal budget that no head can lose; 1: equal heads")
    floor_rule: FloorRule = Field(
        "blend", description="floor mixed into the counts, the same with the code's rounding, or guaranteed"
    )
    normalize: bool = Field(False, description="weight a head's scores by their concentration, an option of the code")
    skip: int = Field(0, ge=0, description="first layers whose heads stay equal")
    pyramid: bool = Field(False, description="layer budgets fall with depth as in PyramidKV")
    beta: float = Field(20.0, ge=1, description="with `pyramid`: the last layer gets 1/beta of the average")

    def pipeline(self) -> Pipeline:
        layers = Pyramid(self.window, self.beta) if self.pyramid else Uniform()
        prompt_only = Pipeline(
            self.window_attention(),
            HeadAdaptive(layers, self.window, self.floor, self.floor_rule, self.normalize, self.skip),
            LowestScore(recent=self.window),
            Evict(),
            decode=False,
        )
        return self.going_on(prompt_only)
