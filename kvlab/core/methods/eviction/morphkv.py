"""MorphKV: a cache of constant size, refined at every step by the attention of the newest queries."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.fused_window import FusedWindow
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class MorphKV(Method):
    """Keeps the newest tokens, and those older ones that the newest queries attend to, decided at every step.

    The queries' attention is summed or maximized over them. The prompt is compressed by the same rule. The authors'
    code evicts while generating only; its `evict_after` is `buffer`.
    """

    name: ClassVar[str] = "morphkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "MorphKV"
    paper, presets, reasons = published(__file__)

    window: int = Field(32, ge=1, description="last queries that vote; these tokens always stay")
    over: Literal["sum", "max"] = Field("sum", description="of a token's attention from these queries")
    buffer: int = Field(1, ge=1, description="generated tokens kept before each decision")

    def pipeline(self) -> Pipeline:
        score = FusedWindow(self.window, self.over)
        return Pipeline(score, Uniform(), LowestScore(recent=self.window), Evict(), buffer=self.buffer)

    @property
    def own_window(self) -> int:
        """The window, whose tokens always stay."""
        return self.window
