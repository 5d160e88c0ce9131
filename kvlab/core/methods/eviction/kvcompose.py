"""KVCompose: every head keeps its own tokens, and all heads of a layer equally many."""

from pydantic import Field

from kvlab.core.contract import LowestScore, Method, Pipeline, Preset, Recent, SecondPassRequest, Sinks, register
from kvlab.core.methods.allocators.model_wide import ModelWide
from kvlab.core.methods.scorers.kvzip import LayerAttention


@register
class KVCompose(Method):
    """Lets layers compete for the budget with composite tokens: the best slots of all their heads, the second best, ...

    So each head chooses for itself, and the cache stays rectangular, as inference engines hold it. A slot's score is
    the most attention it gets when the context is read again, plus the mean of its token over heads. Follows kvpress
    (kvcompose_press.py), which takes the mean over query heads of a group where here it is their maximum, and may keep
    the newest token or not; here it stays. Acts once, after the prompt.
    """

    name = "kvcompose"
    family = "eviction"
    title = "KVCompose"

    ask: str = Field("\n", description="text put before the context when it is read again")
    piece: int = Field(2048, ge=16, description="tokens of the context read again at a time")
    sinks: Sinks = 0
    recent: Recent = 1

    paper = "https://arxiv.org/abs/2509.05165"
    presets = {
        "paper": Preset(
            "structured compression with the class's defaults in kvpress",
            {
                "sinks": (0, "kvpress, kvcompose_press.py, keep_token_lower_bound"),
                "recent": (
                    1,
                    "kvpress, kvcompose_press.py: no window is protected; the newest token is always kept here",
                ),
            },
            beyond="kvpress reads the whole context again at once, without a text before it.",
        ),
    }
    reasons = {
        "ask": "KVzip's here: a newline",
        "piece": "KVzip's here; short texts are read again at once",
    }

    def pipeline(self) -> Pipeline:
        select = LowestScore(self.sinks, self.recent)
        score = LayerAttention("max", second_pass=SecondPassRequest(self.ask, self.piece))
        return Pipeline(score, ModelWide("rank", select), select, decode=False)
