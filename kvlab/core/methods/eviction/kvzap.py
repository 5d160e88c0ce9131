"""KVzap: KVzip's scores predicted from hidden states in one pass."""

from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.model_wide import ModelWide
from kvlab.core.methods.allocators.threshold import AboveThreshold
from kvlab.core.methods.scorers.lookahead.kvzap import PredictedScore
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict

FILE_HELP = "networks: mini, a file of `kvlab fit --method kvzap`, or untrained (random)"


@register
class KVzap(Method):
    """Keeps the pairs that a small network, fitted to the model, expects to get most attention from a rehearsal.

    The network maps the attention module's input to the log of each KV head's KVzip score, so one pass suffices where
    KVzip needs two. A model-wide cut over all layers and heads meets the budget; `kvzap-threshold` is the published
    form without a budget. Acts once, after the prompt.
    """

    name: ClassVar[str] = "kvzap"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "KVzap"
    paper, presets, reasons = published(__file__)

    heads: str = Field("mini", description=FILE_HELP)
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: int = Field(16, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        select = LowestScore(self.sinks, self.recent)
        return Pipeline(PredictedScore(self.heads), ModelWide(select=select), select, Evict(), decode=False)


@register
class KVzapThreshold(Method):
    """KVzap as published: evicts every pair outside the window whose predicted log score is below a threshold.

    Takes no budget: a text that needs less keeps less. Acts once, after the prompt: generated tokens are kept in
    addition.
    """

    name: ClassVar[str] = "kvzap-threshold"
    family: ClassVar[str] = "budget-free"
    title: ClassVar[str] = "KVzap by threshold"
    needs_budget: ClassVar[bool] = False
    paper, presets, reasons = published(__file__, "kvzap_threshold")

    heads: str = Field("mini", description=FILE_HELP)
    threshold: float = Field(-4.0, description="log score below which a pair is evicted")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: int = Field(128, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        select = LowestScore(self.sinks, self.recent)
        allocate = AboveThreshold(self.threshold, select)
        return Pipeline(PredictedScore(self.heads), allocate, select, Evict(), decode=False)
