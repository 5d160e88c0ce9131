"""EpiKV: while generating, keep the tokens at which the model's residual stream changed most."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.epiphany import Epiphany
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class EpiKV(Method):
    """Evicts, in all layers and heads alike, the token with the smallest change of the residual stream (epiphany).

    Changes at a depth where they go with important tokens count for a token, and those at a later depth against it;
    both as z-scores among the newest tokens, so that neither grows with the text. No attention is read. Every layer
    decides by the scores of the tokens before its pass, the newest tokens are protected, so all layers choose alike.
    Where prompt tokens compete, all layers hold the whole prompt until its last one has read it.
    """

    name: ClassVar[str] = "epikv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "EpiKV"
    paper, presets, reasons = published(__file__)

    early: float = Field(11 / 32, ge=0, le=1, description="share of the layers after which changes count for a token")
    late: float = Field(22 / 32, ge=0, le=1, description="share of the layers after which changes count against it")
    window: int = Field(64, ge=2, le=4096, description="newest tokens that a change is compared with")
    recent: int = Field(128, ge=1, description="last tokens that always stay, at most a quarter of the budget")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    prompt: Literal["compete", "keep"] = Field(
        "compete", description="prompt tokens compete, or stay as long as the budget holds them"
    )

    def pipeline(self) -> Pipeline:
        score = Epiphany(self.early, self.late, self.window, self.prompt)
        return Pipeline(score, Uniform(), LowestScore(self.sinks, self.recent, most=0.25), Evict())
