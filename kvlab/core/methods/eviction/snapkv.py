"""SnapKV: attention of an observation window at the prompt's end, pooled over neighbours."""

from typing import ClassVar

from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.eviction.window_methods import WindowEvicting
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class SnapKV(WindowEvicting):
    """Keeps the prompt tokens that the prompt's last queries attend to, with their neighbours.

    Acts once, after the prompt, as published: generated tokens are kept in addition to the budget, unless
    `decode=budget`.
    """

    name: ClassVar[str] = "snapkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "SnapKV"
    paper, presets, reasons = published(__file__)

    def pipeline(self) -> Pipeline:
        score = self.window_attention()
        select = LowestScore(recent=self.window)
        return self.going_on(Pipeline(score, Uniform(), select, Evict(), decode=False))
