"""DuoAttention: heads that retrieve keep the text, the others stream; and, made continuous, a share for each."""

from typing import ClassVar

from pydantic import Field

from kvlab.methods.allocators.profile import HeadProfile, Levels
from kvlab.methods.base import Method, register
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.scorers.contents.none import Recency
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.eviction.evict import Evict

LEARNED = (
    "Which heads retrieve is learned there by training a gate a head on synthetic passkeys; here it is read off a cut "
    "over the model (`kvlab profile`). There streaming heads go on streaming while decoding; here generated tokens are "
    "kept on top in all heads."
)


@register
class DuoAttention(Method):
    """Gives each head its model's share of the budget, the same for every text, and keeps sinks and the newest tokens.

    Looks at no attention at all: where memory belongs was learned once, on other texts, by `kvlab profile`. Acts once,
    after the prompt.
    """

    name: ClassVar[str] = "duoattention"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "DuoAttention"
    paper: ClassVar[str] = "https://arxiv.org/abs/2410.10819"

    presets: ClassVar = {
        "paper": Preset(
            "full and streaming heads, as deployed",
            {
                "levels": ("two", "section 2.3"),
                "sinks": (128, "the released patterns of Llama-3, sink_size"),
                "recent": (256, "the released patterns of Llama-3, recent_size"),
            },
            LEARNED,
        )
    }
    reasons: ClassVar = {
        "profile": "a profile belongs to a model's weights; mini's and mini-60's ship, others are of `kvlab profile`",
        "levels": "heads want shares in between: text KL on mini at 20 % is .013, with two levels .028 (5 prompts)",
        "sinks": "as the other methods here; 128 of a short prompt would be most of the budget",
        "recent": "as in the cut the profile was made by; 256 of a short prompt would be most of the budget",
    }

    profile: str = Field("mini", description="head shares: mini, a file of `kvlab profile`, or even (equal heads)")
    levels: Levels = Field("shares", description="a share for each head, or two: all of the text, or sinks and newest")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: int = Field(16, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        """Recency, a profile's budgets, sinks and the newest protected, prefill only."""
        select = LowestScore(self.sinks, self.recent)
        return Pipeline(Recency(), HeadProfile(self.profile, self.levels, select), select, Evict(), decode=False)
