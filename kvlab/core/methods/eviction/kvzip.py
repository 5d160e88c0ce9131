"""KVzip: keep what the model needs to reconstruct its context, since any question may need it."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.contract.second_pass import Rehearsal
from kvlab.core.methods.allocators.model_wide import ModelWide
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.lookahead.kvzip import Over, RehearsedAttention
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class KVzip(Method):
    """Reads the context again over the full cache, and keeps the pairs that got most attention.

    Independent of the question: what was kept serves any. Acts once, after the prompt; generated tokens are kept in
    addition to the budget. Costs a second pass over the context, which counts as prompt time.
    """

    name: ClassVar[str] = "kvzip"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "KVzip"
    paper, presets, reasons = published(__file__)

    level: Literal["pair", "uniform", "head"] = Field(
        "pair", description="pairs of all layers and heads compete, pairs within each head, or whole heads"
    )
    over: Over = Field("max", description="of the rehearsal's attention to a pair: maximum, root mean square, or mean")
    ask: str = Field("\n", description="text put before the context when it is read again")
    piece: int = Field(2048, ge=16, description="tokens of the context read again at a time")
    window: int = Field(0, ge=0, description="last prompt queries whose largest attention counts too")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: int = Field(1, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        score = RehearsedAttention(self.over, self.window, Rehearsal(self.ask, self.piece))
        select = LowestScore(self.sinks, self.recent)
        allocate = (
            Uniform() if self.level == "uniform" else ModelWide("head" if self.level == "head" else "slot", select)
        )
        return Pipeline(score, allocate, select, Evict(), decode=False)
