"""L2 norm: tokens with short keys stay."""

from typing import ClassVar

from pydantic import Field

from kvlab.methods.allocators.uniform import Uniform
from kvlab.methods.base import Method, register
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.scorers.keys_alone import ShortKeys
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.evict import Evict


@register
class KeyNorm(Method):
    """Keeps the tokens whose keys are shortest: a short key goes with much attention. Looks at no query.

    A key keeps its length when it is rotated. The sink has the shortest key of all.
    """

    name: ClassVar[str] = "key-norm"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "Key norm"
    paper: ClassVar[str] = "https://arxiv.org/abs/2406.11430"

    presets: ClassVar = {
        "paper": Preset(
            "the paper's rule",
            {
                "sinks": (0, "keys alone decide; kvpress, knorm_press.py"),
                "recent": (1, "keys alone decide; the newest token must stay here"),
            },
            "The first two layers are left whole there, which would exceed the budget.",
        )
    }
    reasons: ClassVar = dict.fromkeys(("sinks", "recent"), "the paper's")

    sinks: int = Field(0, ge=0, description="first tokens that always stay")
    recent: int = Field(1, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        """Length of keys."""
        return Pipeline(ShortKeys(), Uniform(), LowestScore(self.sinks, self.recent), Evict())
