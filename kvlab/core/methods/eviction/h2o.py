"""H2O: heavy hitters by accumulated attention."""

from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.accumulated_attention import AccumulatedAttention
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class H2O(Method):
    """Keeps the tokens with the most attention accumulated over all queries, and a recent window.

    The sum is not divided by the number of queries that could see a token (as in the authors' code), so early tokens
    are favoured and sinks need no protection. Grouped queries are averaged.
    """

    name: ClassVar[str] = "h2o"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "H2O"
    paper, presets, reasons = published(__file__)

    recent: float = Field(0.5, gt=0, lt=1, description="share of the budget for the most recent tokens")

    def pipeline(self) -> Pipeline:
        return Pipeline(AccumulatedAttention(), Uniform(), LowestScore(recent=self.recent), Evict())
