"""Scissorhands: what was unimportant to the last queries stays unimportant."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.decode_buffer import GoesOn
from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.eviction.window_methods import RKV_BUFFER, SHARED_HEADS
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

    window: int = Field(400, ge=1, description="last queries that count (history window)")
    recent: int = Field(10, ge=1, description="last tokens that always stay")

    paper: ClassVar[str] = "https://arxiv.org/abs/2305.17118"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "a fixed budget while generating",
            {
                "decode": ("budget", "abstract: the cache stays within a fixed budget"),
            },
            beyond=(
                "The paper's window and recent tokens could not be confirmed. It evicts half of the budget at a time. "
                f"{SHARED_HEADS}"
            ),
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "window": "our choice: long enough that a token is not judged by a few queries",
        "recent": "our choice: too few queries have seen the newest tokens",
        "decode": "as with the other methods of this kind; `budget` keeps the newest queries too, which takes bytes",
        "buffer": RKV_BUFFER,
    }

    def pipeline(self) -> Pipeline:
        select = LowestScore(recent=self.recent)
        return self.going_on(Pipeline(Persistence(self.window), Uniform(), select, Evict(), decode=False))
