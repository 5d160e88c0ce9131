"""Fast KVzip: KVzip's scores predicted by low-rank gates with sink keys."""

from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.model_wide import ModelWide
from kvlab.core.methods.scorers.lookahead.kvzap import PredictedScore
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class FastKVzip(Method):
    """Keeps the pairs that a gate, fitted to the model, expects to get most attention from a rehearsal.

    In a gate, low-rank queries of a token's hidden state attend to a low-rank key of the same token and to learned sink
    keys; the attention that the token gets is its score. A model-wide cut over all layers and heads meets the budget.
    Acts once, after the prompt.
    """

    name: ClassVar[str] = "fast-kvzip"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "Fast KVzip"
    paper, presets, reasons = published(__file__)

    gates: str = Field("mini", description="mini, a file of `kvlab fit --method fast-kvzip`, or untrained (random)")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: int = Field(16, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        select = LowestScore(self.sinks, self.recent)
        score = PredictedScore(self.gates, networks="fast-kvzip")
        return Pipeline(score, ModelWide(select=select), select, Evict(), decode=False)
