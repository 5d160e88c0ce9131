"""LU-KV: ExpectedAttention's scores, with budgets of heads by what later text loses."""

from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.curves import HeadCurves
from kvlab.core.methods.scorers.lookahead.expected_attention import ExpectedAttention
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class LUKV(Method):
    """Gives each head the slots that later text would miss most, by curves of the model, and keeps its best tokens.

    Curves belong to a model and a score: `kvlab fit --method lukv` measures them. With another score:
    `compose:score=snapkv:allocate=curves:curves=FILE`, with a file of `--score snapkv`. Acts once, after the prompt.
    """

    name: ClassVar[str] = "lukv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "LU-KV"
    paper, presets, reasons = published(__file__)

    curves: str = Field("mini", description="mini, a file of `kvlab fit --method lukv`, or even (equal heads)")
    n_future: int = Field(512, ge=1, description="positions ahead over which the rotation is averaged")
    epsilon: float = Field(0.02, ge=0, description="added to the attention before weighting by the value")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: int = Field(1, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        select = LowestScore(self.sinks, self.recent)
        score = ExpectedAttention(self.n_future, self.sinks, epsilon=self.epsilon)
        return Pipeline(score, HeadCurves(self.curves, select=select), select, Evict(), decode=False)
