"""Scissorhands: what was unimportant to the last queries stays unimportant."""

from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.decode_buffer import GoesOn
from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.persistence import Persistence
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class Scissorhands(GoesOn):
    """Evicts the tokens that most of the last queries gave less than an equal share of their attention.

    With `decode=budget` it counts anew, with the newest queries, whenever `buffer` tokens have gathered; the original
    evicts half of the budget at a time.
    """

    name: ClassVar[str] = "scissorhands"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "Scissorhands"
    paper, presets, reasons = published(__file__)

    window: int = Field(400, ge=1, description="last queries that count (history window)")
    recent: int = Field(10, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        select = LowestScore(recent=self.recent)
        return self.going_on(Pipeline(Persistence(self.window), Uniform(), select, Evict(), decode=False))
