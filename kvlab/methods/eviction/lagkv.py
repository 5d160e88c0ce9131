"""LagKV: tokens that stand out against those right after them stay."""

from typing import ClassVar

from pydantic import Field

from kvlab.methods.allocators.uniform import Uniform
from kvlab.methods.base import register
from kvlab.methods.going_on import GOING_ON, GoesOn
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.scorers.contents.lag import Lag
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.eviction.evict import Evict


@register
class LagKV(GoesOn):
    """Keeps, of each partition of the prompt, the tokens that vary most against the next partition's range.

    Looks at no query and no attention. The last full partition and the rest behind it stay as long as the budget
    allows. Acts on the prompt only, unless `decode=budget`.
    """

    name: ClassVar[str] = "lagkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "LagKV"
    paper: ClassVar[str] = "https://arxiv.org/abs/2504.04704"

    presets: ClassVar = {
        "paper": Preset(
            "the paper's experiments, as kvpress has them",
            {
                "sinks": (4, "kvpress, lagkv_press.py, n_sink"),
                "lag": (128, "kvpress, lagkv_press.py, lag_size"),
            },
            "A share of each partition stays there; here the budget is met exactly, by the same ranks.",
        )
    }
    reasons: ClassVar = {**dict.fromkeys(("sinks", "lag"), "the paper's"), **GOING_ON}

    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    lag: int = Field(128, ge=2, description="tokens of a partition")

    def pipeline(self) -> Pipeline:
        """Ranks within partitions, prefill only."""
        score = Lag(self.sinks, self.lag)
        return self.going_on(Pipeline(score, Uniform(), LowestScore(self.sinks), Evict(), decode=False))
