"""DuoAttention: retrieval heads keep the text, streaming heads a window; here with continuous shares."""

from pydantic import Field

from kvlab.core.contract import LowestScore, Method, Pipeline, Preset, Recent, Sinks, register
from kvlab.core.methods.allocators.profile import HeadProfile, Levels
from kvlab.core.methods.scorers.recency import Recency


@register
class DuoAttention(Method):
    """Gives each head its model's share of the budget, the same for every text, and keeps sinks and the newest tokens.

    Uses no attention: shares were learned on other texts by `kvlab fit`. Acts once, after the prompt.
    """

    name = "duoattention"
    family = "eviction"
    title = "DuoAttention"

    profile: str = Field("mini", description="head shares: mini, a file of `kvlab fit`, or even (equal heads)")
    levels: Levels = Field("shares", description="a share per head, or two levels: the whole text, or sinks and newest")
    sinks: Sinks = 4
    recent: Recent = 16

    paper = "https://arxiv.org/abs/2410.10819"
    presets = {
        "paper": Preset(
            "full and streaming heads, as deployed",
            {
                "levels": ("two", "section 2.3"),
                "sinks": (128, "the released patterns of Llama-3, sink_size"),
                "recent": (256, "the released patterns of Llama-3, recent_size"),
            },
            beyond=(
                "The original learns which heads retrieve by training a gate per head on synthetic passkeys; here it "
                "follows from a model-wide cut (`kvlab fit`). Its streaming heads keep streaming while decoding; "
                "here all heads keep generated tokens."
            ),
        ),
    }
    reasons = {
        "profile": (
            "profiles belong to a model's weights; those of mini, mini-60 and mini-half are included, others come "
            "from `kvlab fit`"
        ),
        "levels": "intermediate shares are better: text KL on mini at 20 % is .013, with two levels .028 (5 prompts)",
        "sinks": "as for the other methods here; 128 of a short prompt would be most of the budget",
        "recent": "as when the profile was created; 256 of a short prompt would be most of the budget",
    }

    def pipeline(self) -> Pipeline:
        select = LowestScore(self.sinks, self.recent)
        return Pipeline(Recency(), HeadProfile(self.profile, self.levels, select), select, decode=False)
