"""ExpectedAttention: keep the slots that future queries, modelled as Gaussian, would attend to."""

from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.decode_buffer import GoesOn
from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.adaptive import HeadAdaptive
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.lookahead.expected_attention import ExpectedAttention as Expected
from kvlab.core.methods.scorers.lookahead.expected_attention import Weight
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class ExpectedAttention(GoesOn):
    """Keeps the slots expected to get most attention from future queries, modelled as Gaussian.

    Mean and covariance of each query head's queries before rotation, rotated ahead by the mean rotation, give the
    expected attention in closed form; it is weighted by the value's length. Acts once, after the prompt, unless
    `decode=budget`.
    """

    name: ClassVar[str] = "expected-attention"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "ExpectedAttention"
    paper, presets, reasons = published(__file__)

    n_future: int = Field(512, ge=1, description="positions ahead over which the rotation is averaged")
    sinks: int = Field(4, ge=0, description="first tokens excluded from the Gaussian, which always stay")
    covariance: bool = Field(True, description="use the variance of queries, not only their mean")
    weight: Weight = Field("value", description="weight by the length of the value, of its projection, or not at all")
    epsilon: float = Field(0.0, ge=0, description="added to the attention before weighting by the value")
    adaptive: bool = Field(False, description="heads compete for a layer's budget as in AdaKV")
    floor: float = Field(0.2, ge=0, le=1, description="with `adaptive`: share of the equal budget no head can lose")

    def pipeline(self) -> Pipeline:
        score = Expected(self.n_future, self.sinks, self.covariance, self.weight, self.epsilon)
        allocate = HeadAdaptive(window=1, floor=self.floor) if self.adaptive else Uniform()
        return self.going_on(Pipeline(score, allocate, LowestScore(self.sinks), Evict(), decode=False))
