"""LU-KV: ExpectedAttention's scores, with budgets of heads by what later text loses."""

from dataclasses import dataclass

from pydantic import Field

from kvlab.core.contract import LowestScore, Method, Pipeline, Preset, Recent, Sinks, register
from kvlab.core.methods.allocators.profile import HeadProfile
from kvlab.core.methods.scorers.expected_attention import ExpectedAttention


@dataclass(frozen=True)
class HeadCurves(HeadProfile):
    """Split the model's budget over heads as one cut of their loss curves did on other texts (LU-KV, arXiv 2602.08585).

    `profile` names a file of `kvlab fit --method lukv`: the shares of the slots at 99 budgets, 1 to 99 % of a prompt,
    measured for one score. Between them shares are interpolated; the original takes the nearest (kvpress,
    lukv_press.py). Counts are rounded over the model, so that its budget is met; the original rounds by layer.
    """


@register
class LUKV(Method):
    """Gives each head the slots that later text would miss most, by curves of the model, and keeps its best tokens.

    Curves belong to a model and a score: `kvlab fit --method lukv` measures them. With another score:
    `compose:score=snapkv:allocate=curves:curves=FILE`, with a file fitted to that score. Acts once, after the prompt.
    """

    name = "lukv"
    family = "eviction"
    title = "LU-KV"

    curves: str = Field("mini", description="mini, a file of `kvlab fit --method lukv`, or even (equal heads)")
    n_future: int = Field(512, ge=1, description="positions ahead over which the rotation is averaged")
    epsilon: float = Field(0.02, ge=0, description="added to the attention before weighting by the value")
    sinks: Sinks = 4
    recent: Recent = 1

    paper = "https://arxiv.org/abs/2602.08585"
    presets = {
        "paper": Preset(
            "ExpectedAttention with the authors' curves",
            {
                "n_future": (512, "kvpress, expected_attention_press.py, n_future_positions"),
                "epsilon": (0.02, "kvpress, lukv_press.py: ExpectedAttentionPress(epsilon=2e-2)"),
                "sinks": (4, "kvpress, lukv_press.py, sink"),
                "recent": (1, "kvpress, lukv_press.py, window"),
            },
            beyond=(
                "The original measures its curves on 30 questions of one synthetic text, with decoded answers as "
                "later text; here `kvlab fit --method lukv` reads windows of books, whose last tokens are the later "
                "text."
            ),
        ),
    }
    reasons = {
        "curves": (
            "curves belong to a model's weights; those of mini are included, others come from `kvlab fit --method lukv`"
        ),
        "n_future": "the published one",
        "epsilon": "the published one",
        "sinks": "the published one",
        "recent": "the published one",
    }

    def pipeline(self) -> Pipeline:
        select = LowestScore(self.sinks, self.recent)
        score = ExpectedAttention(self.n_future, self.sinks, epsilon=self.epsilon)
        return Pipeline(score, HeadCurves(profile=self.curves, select=select), select, decode=False)
