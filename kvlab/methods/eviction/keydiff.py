"""KeyDiff: tokens whose keys are unlike the others stay."""

from typing import ClassVar

from pydantic import Field

from kvlab.methods.allocators.uniform import Uniform
from kvlab.methods.base import Method, register
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.scorers.contents.keys_alone import UnusualKeys
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.eviction.evict import Evict


@register
class KeyDiff(Method):
    """Keeps the tokens whose keys are least like the head's mean key. Looks at no query.

    While decoding, the mean is that of the slots held, as in the paper's block-wise form; `compress_every` is the
    block's length.
    """

    name: ClassVar[str] = "keydiff"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "KeyDiff"
    paper: ClassVar[str] = "https://arxiv.org/abs/2504.15364"

    presets: ClassVar = {
        "paper": Preset(
            "the paper's rule",
            {
                "sinks": (0, "keys alone decide; kvpress, keydiff_press.py"),
                "recent": (1, "keys alone decide; the newest token must stay here"),
            },
            "The prompt comes in blocks of 128 tokens there, with a decision after each; here it is decided once.",
        )
    }
    reasons: ClassVar = dict.fromkeys(("sinks", "recent"), "the paper's")

    sinks: int = Field(0, ge=0, description="first tokens that always stay")
    recent: int = Field(1, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        """Unlikeness of keys."""
        return Pipeline(UnusualKeys(), Uniform(), LowestScore(self.sinks, self.recent), Evict())
