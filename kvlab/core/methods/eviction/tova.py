"""TOVA: evict what the newest query attends to least, the same tokens in every head of a layer."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.last_query import LastQuery
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class Tova(Method):
    """Keeps what the newest query attends to, averaged over all heads of the layer, updated at every step.

    Only the newest token is protected; an evicted token cannot return, whatever later queries need.
    """

    name: ClassVar[str] = "tova"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "TOVA"
    paper, presets, reasons = published(__file__)

    sinks: int = Field(0, ge=0, description="first tokens that always stay")
    recent: int = Field(1, ge=1, description="last tokens that always stay")
    heads: Literal["shared", "each"] = Field("shared", description="whether all heads of a layer keep the same tokens")

    def pipeline(self) -> Pipeline:
        return Pipeline(LastQuery(self.heads), Uniform(), LowestScore(self.sinks, self.recent), Evict())
