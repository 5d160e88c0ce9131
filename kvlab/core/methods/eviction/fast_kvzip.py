"""Fast KVzip: KVzip's scores predicted by low-rank gates with sink keys."""

from pydantic import Field

from kvlab.core.contract import LowestScore, Method, Pipeline, Preset, Recent, Sinks, register
from kvlab.core.methods.allocators.model_wide import ModelWide
from kvlab.core.methods.scorers.kvzap import PredictedScore


@register
class FastKVzip(Method):
    """Keeps the pairs that a gate, fitted to the model, expects to get most attention from a second pass.

    In a gate, low-rank queries of a token's hidden state attend to a low-rank key of the same token and to learned sink
    keys; the attention that the token gets is its score. A model-wide cut over all layers and heads meets the budget.
    Acts once, after the prompt.
    """

    name = "fast-kvzip"
    family = "eviction"
    title = "Fast KVzip"

    gates: str = Field("mini", description="mini, a file of `kvlab fit --method fast-kvzip`, or untrained (random)")
    sinks: Sinks = 4
    recent: Recent = 16

    paper = "https://arxiv.org/abs/2601.17668"
    presets = {
        "paper": Preset(
            "prompts of 32,000 tokens or more",
            {
                "sinks": (4, "kvpress, fastkvzip_press.py, n_sink"),
                "recent": (4096, "kvpress, fastkvzip_press.py, window_size"),
            },
            beyond=(
                "For shorter prompts the original keeps the last 2 % of the tokens. It reads the prompt in chunks and "
                "evicts after each, and scores generated tokens too, a buffer of 128 at a time; here it acts once, "
                "after the prompt, and generated tokens are kept."
            ),
        ),
    }
    reasons = {
        "gates": (
            "gates belong to a model's weights; those of mini are included, others come from `kvlab fit --method "
            "fast-kvzip`"
        ),
        "sinks": "the published one",
        "recent": "as for kvzap, with which it is compared: 4,096 of a short prompt would be all of the budget",
    }

    def pipeline(self) -> Pipeline:
        select = LowestScore(self.sinks, self.recent)
        score = PredictedScore(self.gates, networks="fast-kvzip")
        return Pipeline(score, ModelWide(select=select), select, decode=False)
