"""KVzap: KVzip's scores predicted from hidden states in one pass."""

from dataclasses import dataclass, field

from pydantic import Field
from torch import Tensor

from kvlab.core.contract import LowestScore, Method, Pipeline, Preset, Recent, Sinks, Uniform, View, register
from kvlab.core.methods.allocators.model_wide import ModelWide
from kvlab.core.methods.scorers.kvzap import PredictedScore

KVZAP_FITTING = (
    "The original fits its networks to KVzip+ scores of Nemotron's pretraining sample, 4,500 texts of 750 to 1,250 "
    "tokens; `kvlab fit` uses books, and fits the same linear or two-layer networks in minutes. The original also "
    "scores generated tokens as they leave the window; here they are kept."
)
KVZAP_NETWORKS = (
    "networks belong to a model's weights; those of mini are included, others come from `kvlab fit --method kvzap`"
)
FILE_HELP = "networks: mini, a file of `kvlab fit --method kvzap`, or untrained (random)"


@dataclass(frozen=True)
class AboveThreshold(Uniform):
    """Each head gets as many slots as score at least `threshold` or are protected (KVzap, DMSPress)."""

    threshold: float = 0.0
    protect: LowestScore = field(default_factory=LowestScore)

    def head_budgets(self, view: View) -> Tensor:
        """Number (B, H) of slots that reach the threshold or are protected."""
        stays = (view.slots.score >= self.threshold) | self.protect.protected(view)
        return (stays & view.slots.valid).sum(-1)


@register
class KVzap(Method):
    """Keeps the pairs that a small network, fitted to the model, expects to get most attention from a second pass.

    The network maps the attention module's input to the log of each KV head's KVzip score, so one pass suffices where
    KVzip needs two. A model-wide cut over all layers and heads meets the budget; `kvzap-threshold` is the published
    form without a budget. Acts once, after the prompt.
    """

    name = "kvzap"
    family = "eviction"
    title = "KVzap"

    heads: str = Field("mini", description=FILE_HELP)
    sinks: Sinks = 4
    recent: Recent = 16

    paper = "https://arxiv.org/abs/2601.07891"
    presets = {
        "paper": Preset(
            "the published window, with a budget",
            {
                "sinks": (0, "only scores and the window"),
                "recent": (128, "the sliding window; kvpress, sliding_window_size"),
            },
            beyond=(f"The original uses a threshold: `kvzap-threshold`. {KVZAP_FITTING}"),
        ),
    }
    reasons = {
        "heads": KVZAP_NETWORKS,
        "sinks": "as for the other methods here; the networks score the first tokens highest anyway",
        "recent": "as in `kvlab fit`; 128 of a short prompt would be most of the budget",
    }

    def pipeline(self) -> Pipeline:
        select = LowestScore(self.sinks, self.recent)
        return Pipeline(PredictedScore(self.heads), ModelWide(select=select), select, decode=False)


@register
class KVzapThreshold(Method):
    """KVzap as published: evicts every pair outside the window whose predicted log score is below a threshold.

    Takes no budget: a text that needs less keeps less. Acts once, after the prompt: generated tokens are kept in
    addition.
    """

    name = "kvzap-threshold"
    family = "budget-free"
    title = "KVzap by threshold"
    needs_budget = False

    heads: str = Field("mini", description=FILE_HELP)
    threshold: float = Field(-4.0, description="log score below which a pair is evicted")
    sinks: Sinks = 4
    recent: Recent = 128

    paper = "https://arxiv.org/abs/2601.07891"
    presets = {
        "paper": Preset(
            "the recommended threshold",
            {
                "threshold": (-4.0, "kvzap/README.md, the value used throughout"),
                "sinks": (0, "only scores and the window"),
                "recent": (128, "kvpress, dms_press.py (ThresholdPress), sliding_window_size"),
            },
            beyond=KVZAP_FITTING,
        ),
    }
    reasons = {
        "heads": KVZAP_NETWORKS,
        "threshold": "the published one",
        "sinks": "as for the other methods here; the networks score the first tokens highest anyway",
        "recent": "the published one",
    }

    def pipeline(self) -> Pipeline:
        select = LowestScore(self.sinks, self.recent)
        allocate = AboveThreshold(threshold=self.threshold, protect=select)
        return Pipeline(PredictedScore(self.heads), allocate, select, decode=False)
