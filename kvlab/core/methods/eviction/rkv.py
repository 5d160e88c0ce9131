"""R-KV: while generating, keep tokens with high attention and low redundancy."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.decode_buffer import GoesOn
from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.eviction.window_methods import Odd
from kvlab.core.methods.scorers.key_value.redundancy import Redundancy
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class RKV(GoesOn):
    """Decides whenever `buffer` tokens were generated, by attention of the last queries minus redundancy of keys.

    The prompt is compressed by the same score. `balance=1` ignores redundancy, which is the authors' baseline of SnapKV
    while decoding.
    """

    name: ClassVar[str] = "rkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "R-KV"
    paper, presets, reasons = published(__file__)

    window: int = Field(8, ge=1, description="last queries that vote; these tokens always stay")
    kernel: Odd = Field(7, ge=1, le=1025, description="width of the maximum over neighbours, odd")
    balance: float = Field(0.1, ge=0, le=1, description="weight of attention; the rest is the weight of redundancy")
    threshold: float = Field(0.5, ge=-1, le=1, description="cosine above which a key is redundant with another")
    excused: int = Field(1, ge=0, description="number of last similar keys that a key does not count as redundant")
    decode: Literal["keep", "budget"] = Field("budget", description="keep generated tokens, or let them compete")

    def pipeline(self) -> Pipeline:
        score = Redundancy(self.window, self.kernel, self.balance, self.threshold, self.excused)
        return self.going_on(Pipeline(score, Uniform(), LowestScore(recent=self.window), Evict(), decode=False))
