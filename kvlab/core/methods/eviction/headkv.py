"""HeadKV: SnapKV's scores, with the model's budget split over heads by what each head is for."""

from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.profile import HeadProfile
from kvlab.core.methods.eviction.window_methods import WindowEvicting
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class HeadKV(WindowEvicting):
    """Gives each head a fixed share of the budget, in proportion to its score for the model, and keeps its best tokens.

    The original scores heads by retrieval and reasoning over needles that the model answers; here the scores are the
    shares of `kvlab profile`, by which any text is kept. A part of the budget is split evenly first (KVCache-Factory,
    run_longbench.py, where it is 1 - 1 / head_beta).
    """

    name: ClassVar[str] = "headkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "HeadKV"
    paper, presets, reasons = published(__file__)

    profile: str = Field("mini", description="head shares: mini, a file of `kvlab profile`, or even (equal heads)")
    even: float = Field(0.2, ge=0, le=1, description="part of the budget that is split evenly, the rest by the profile")

    def pipeline(self) -> Pipeline:
        select = LowestScore(recent=self.window)
        allocate = HeadProfile(self.profile, select=select, even=self.even)
        return self.going_on(Pipeline(self.window_attention(), allocate, select, Evict(), decode=False))
