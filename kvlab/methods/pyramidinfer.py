"""PyramidInfer: the tokens recent queries look at, fewer of them in deeper layers."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from kvlab.methods.allocators.cosine import CosineDecay
from kvlab.methods.base import Method, register
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.scorers.recent_rows import RecentRows
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.evict import Evict


@register
class PyramidInfer(Method):
    """Keeps what the recent queries look at, the same tokens in every head, fewer of them in deeper layers.

    Budgets fall along half a cosine and sum to exactly what is asked (the published code has no total: ratios and a
    minimum of 64 tokens decide). `decode="budget"`, the default, ranks prompt and generated tokens together and never
    exceeds the budget. The published code instead leaves the prompt alone and thins generated tokens 16 at a time,
    keeping less than 90 % of each lot, so its cache grows with the text; `decode="keep"`, which keeps them all, is
    that behaviour's upper bound. With `prefill_saving`, as published, deeper layers are not given the hidden states of
    tokens that a layer dropped: they compute less, and what they never see they cannot keep. Without it (default) every
    layer sees the whole prompt and then compresses. Measured on mini with 8 prompts of 896 tokens, budgets 50, 20 and
    10 %: operations of the prefill .58, .33 and .25 of those without saving, its time .55, .37 and .29 (median of 7
    pairs on a busy CPU), KL of a continuation read in one pass .068, .094 and .141 against .047, .104 and .152 without.

    Scores are not pooled over neighbours, so single digits of a number stay and the others go: on mini at 20 % it finds
    none of 8 needles, like H2O and like SnapKV without pooling. With SnapKV's pooling, heads and window put in, it
    keeps as much of each needle as SnapKV, layer by layer, and finds as many (3).
    """

    name: ClassVar[str] = "pyramidinfer"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "PyramidInfer"
    paper: ClassVar[str] = "https://arxiv.org/abs/2405.12532"

    ratio: float = Field(0.9, gt=0, le=1, description="where the cosine decay ends (0.9 for 7 B models, 0.8 for 13 B)")
    schedule: Literal["compound", "direct"] = Field(
        "compound", description="decay applied to what the layer before kept (published), or to the prompt"
    )
    recent: float = Field(
        0.2, gt=0, lt=1, description="share of the prompt's queries that vote, and of the budget kept"
    )
    distance_weight: float = Field(1.2, gt=0, description="weight of the newest query; the oldest that votes weighs 1")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    heads: Literal["shared", "each"] = Field("shared", description="same tokens in every head (paper), or each its own")
    prefill_saving: bool = Field(False, description="deeper layers compute only what the layers before kept (paper)")
    decode: Literal["budget", "keep"] = Field("budget", description="generated tokens compete, or stay on top")

    @model_validator(mode="after")
    def _one_set_of_tokens(self) -> "PyramidInfer":
        if self.prefill_saving and self.heads == "each":
            raise ValueError("prefill_saving needs the same tokens in every head: use heads 'shared'")
        return self

    def pipeline(self) -> Pipeline:
        """Recent attention averaged over heads, cosine layer budgets, sinks and recent tokens protected."""
        within = self.decode == "budget"
        return Pipeline(
            RecentRows(self.recent, self.distance_weight, self.heads, within),
            CosineDecay(self.ratio, self.schedule),
            LowestScore(sinks=self.sinks, recent=self.recent),
            Evict(),
            decode=within,
            saves_prefill=self.prefill_saving,
        )
