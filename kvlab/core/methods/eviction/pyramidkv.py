"""PyramidKV: SnapKV's scores with budgets that fall with depth."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.pyramid import Pyramid
from kvlab.core.methods.eviction.window_methods import WindowEvicting
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class PyramidKV(WindowEvicting):
    """Gives early layers, where attention is spread, more slots than late ones, where it is concentrated.

    The default `paper` is a linear schedule with an exact total. `code` is the authors' schedule with integer steps,
    whose total (too large by up to L (L - 1) / 2 slots as published) is corrected. Acts once, after the prompt:
    generated tokens are kept in addition to the budget.
    """

    name: ClassVar[str] = "pyramidkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "PyramidKV"
    paper, presets, reasons = published(__file__)

    variant: Literal["paper", "code"] = Field("paper", description="layer schedule: exact line, or integer steps")
    beta: float = Field(20.0, ge=1, description="the last layer gets 1/beta of the average, besides the window")
    window: int = Field(8, ge=1, description="last prompt queries that vote; these tokens always stay")

    def pipeline(self) -> Pipeline:
        prompt_only = Pipeline(
            self.window_attention(),
            Pyramid(self.window, self.beta, self.variant),
            LowestScore(recent=self.window),
            Evict(),
            decode=False,
        )
        return self.going_on(prompt_only)
