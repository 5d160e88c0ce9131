"""CurDKV: keep the tokens with long keys and long values, compared with their neighbours'."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.key_value.leverage import SquaredLengths
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class CurDKV(Method):
    """Keeps the tokens of highest leverage, approximated by squared lengths of key and value. Uses no queries.

    Leverage scores choose the rows of a CUR decomposition. Follows kvpress (cur_press.py): squared lengths are divided
    by their sum over each `part` tokens of the text, and key and value are multiplied. Acts once, after the prompt.
    """

    name: ClassVar[str] = "cur"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "CurDKV"
    paper, presets, reasons = published(__file__)

    of: Literal["product", "mean", "key", "value"] = Field("product", description="leverage of keys, values, or both")
    part: int = Field(16, ge=1, description="tokens among which lengths are compared")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")

    def pipeline(self) -> Pipeline:
        score = SquaredLengths(self.of, self.part)
        return Pipeline(score, Uniform(), LowestScore(self.sinks), Evict(), decode=False)
