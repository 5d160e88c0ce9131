"""DuoAttention: retrieval heads keep the text, streaming heads a window; here with continuous shares."""

from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.profile import HeadProfile, Levels
from kvlab.core.methods.scorers.key_value.recency import Recency
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class DuoAttention(Method):
    """Gives each head its model's share of the budget, the same for every text, and keeps sinks and the newest tokens.

    Uses no attention: shares were learned on other texts by `kvlab profile`. Acts once, after the prompt.
    """

    name: ClassVar[str] = "duoattention"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "DuoAttention"
    paper, presets, reasons = published(__file__)

    profile: str = Field("mini", description="head shares: mini, a file of `kvlab profile`, or even (equal heads)")
    levels: Levels = Field("shares", description="a share per head, or two levels: the whole text, or sinks and newest")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: int = Field(16, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        select = LowestScore(self.sinks, self.recent)
        return Pipeline(Recency(), HeadProfile(self.profile, self.levels, select), select, Evict(), decode=False)
