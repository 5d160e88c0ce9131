"""LazyEviction: while generating, keep tokens that have not been silent for longer than they used to be."""

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
class LazyEviction(Method):
    """Decides whenever `buffer` tokens were generated, by a token's silence over the largest gap it has come back from.

    Tokens of a chain of thought get attention again after many steps (recurrence), so the longest gap that a token has
    survived says how long its silence may last. The paper's second term, a weight of the gap itself, is left out: its
    form could not be confirmed.
    """

    name: ClassVar[str] = "lazyeviction"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "LazyEviction"
    paper, presets, reasons = published(__file__)

    threshold: float = Field(1e-4, ge=0, le=1, description="attention from which on a token counts as read again")
    window: int = Field(32, ge=1, description="last prompt queries that count")
    buffer: int = Field(128, ge=1, description="generated tokens kept before each decision (observation window)")
    prompt: Literal["compete", "keep"] = Field(
        "compete", description="prompt tokens compete, or stay as long as the budget holds them"
    )
    recent: int = Field(16, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        score = TimeStamps(self.threshold, self.window, "recurrence", self.prompt)
        return Pipeline(score, Uniform(), LowestScore(recent=self.recent), Evict(), buffer=self.buffer)
