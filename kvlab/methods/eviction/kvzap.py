"""KVzap: what KVzip would have found by reading the context again, predicted from hidden states in one pass."""

from typing import ClassVar

from pydantic import Field

from kvlab.methods.allocators.model_wide import ModelWide
from kvlab.methods.allocators.threshold import AboveThreshold
from kvlab.methods.base import Method, register
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.scorers.to_come.predicted import PredictedScore
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.eviction.evict import Evict

TRAINED = (
    "Its networks are fitted to KVzip+ scores of Nemotron's pretraining sample, 4,500 texts of 750 to 1,250 tokens; "
    "`kvlab fit` takes books, and fits the same linear or two-layer networks in minutes. There generated tokens are "
    "judged too, as they leave the window; here they stay."
)
HEADS = "networks belong to a model's weights; those of mini ship, others come from `kvlab fit --method kvzap`"
FILE_HELP = "networks: mini, a file of `kvlab fit --method kvzap`, or untrained (random)"
PRESS = "kvpress, dms_press.py (ThresholdPress)"


@register
class KVzap(Method):
    """Keeps the pairs that a small network, fitted to the model, expects a rehearsal to look at most.

    The network maps what an attention module is given to the log of each KV head's KVzip score, so one pass suffices
    where KVzip takes two. One cut over all layers and heads meets the budget; `kvzap-threshold` is the published form,
    which takes none. Acts once, after the prompt.
    """

    name: ClassVar[str] = "kvzap"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "KVzap"
    paper: ClassVar[str] = "https://arxiv.org/abs/2601.07891"

    presets: ClassVar = {
        "paper": Preset(
            "the published window, under a budget",
            {
                "sinks": (0, "nothing but scores and the window"),
                "recent": (128, "the sliding window; kvpress, sliding_window_size"),
            },
            f"A threshold on the score decides there: `kvzap-threshold`. {TRAINED}",
        )
    }
    reasons: ClassVar = {
        "heads": HEADS,
        "sinks": "as the other methods here; the networks score the first tokens highest anyway",
        "recent": "as in `kvlab profile`; 128 of a short prompt would be most of the budget",
    }

    heads: str = Field("mini", description=FILE_HELP)
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: int = Field(16, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        """Predicted scores, one cut over the model, eviction, prefill only."""
        select = LowestScore(self.sinks, self.recent)
        return Pipeline(PredictedScore(self.heads), ModelWide(select=select), select, Evict(), decode=False)


@register
class KVzapThreshold(Method):
    """KVzap as published: every pair behind the window whose predicted log score is below a threshold leaves.

    Takes no budget: a text that needs less keeps less. Acts once, after the prompt: generated tokens are kept on top.
    """

    name: ClassVar[str] = "kvzap-threshold"
    family: ClassVar[str] = "budget-free"
    title: ClassVar[str] = "KVzap by threshold"
    paper: ClassVar[str] = "https://arxiv.org/abs/2601.07891"
    needs_budget: ClassVar[bool] = False

    presets: ClassVar = {
        "paper": Preset(
            "the recommended threshold",
            {
                "threshold": (-4.0, "kvzap/README.md, the value used throughout"),
                "sinks": (0, "nothing but scores and the window"),
                "recent": (128, f"{PRESS}, sliding_window_size"),
            },
            TRAINED,
        )
    }
    reasons: ClassVar = {
        "heads": HEADS,
        "threshold": "the published one",
        "sinks": "as the other methods here; the networks score the first tokens highest anyway",
        "recent": "the published one",
    }

    heads: str = Field("mini", description=FILE_HELP)
    threshold: float = Field(-4.0, description="log score below which a pair leaves")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: int = Field(128, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        """Predicted scores, whatever reaches the threshold, eviction, prefill only."""
        select = LowestScore(self.sinks, self.recent)
        allocate = AboveThreshold(self.threshold, select)
        return Pipeline(PredictedScore(self.heads), allocate, select, Evict(), decode=False)
