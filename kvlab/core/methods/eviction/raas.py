"""RaaS: while generating, evict the token that has been longest without attention."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.time_stamps import TimeStamps
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class RaaS(Method):
    """Stamps each token with the last query that gave it attention, and evicts the one with the oldest stamp.

    The paper's milestones, such as an intermediate result, are read for a while and then never again. It works on pages
    of tokens with estimated scores; here on tokens, with their attention. Where a budget is too small for the prompt,
    the prompt's tokens go by the same rule, with its last `window` queries.
    """

    name: ClassVar[str] = "raas"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "RaaS"
    paper, presets, reasons = published(__file__)

    threshold: float = Field(1e-4, ge=0, le=1, description="attention from which on a token's stamp is renewed")
    window: int = Field(32, ge=1, description="last prompt queries that stamp the prompt's tokens")
    prompt: Literal["compete", "keep"] = Field(
        "compete", description="prompt tokens compete, or stay as long as the budget holds them"
    )
    recent: int = Field(1, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        score = TimeStamps(self.threshold, self.window, "stamp", self.prompt)
        return Pipeline(score, Uniform(), LowestScore(recent=self.recent), Evict())
