"""LagKV: keep tokens that stand out from those that follow."""

from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.decode_buffer import GoesOn
from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.key_value.lag import Lag
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class LagKV(GoesOn):
    """Keeps, in each partition of the prompt, the tokens that vary most relative to the next partition's range.

    Uses no queries and no attention. The last full partition and what follows are kept as long as the budget allows.
    Acts on the prompt only, unless `decode=budget`.
    """

    name: ClassVar[str] = "lagkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "LagKV"
    paper, presets, reasons = published(__file__)

    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    lag: int = Field(128, ge=2, description="tokens of a partition")

    def pipeline(self) -> Pipeline:
        score = Lag(self.sinks, self.lag)
        return self.going_on(Pipeline(score, Uniform(), LowestScore(self.sinks), Evict(), decode=False))
