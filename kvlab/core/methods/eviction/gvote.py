"""GVote: sampled future queries choose how much each head keeps; no budget is given."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.ballots import ChosenSlots
from kvlab.core.methods.scorers.lookahead.gvote import Ballots
from kvlab.core.methods.scorers.lookahead.sampled_queries import FutureQueries
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class GVote(Method):
    """Keeps the union of what sampled future queries would attend to; layers and heads find their own budgets.

    Samples are queries drawn from a Gaussian of the attention module's inputs. Each chooses as many slots as the last
    query needs for 95 % of its attention, and a slot is kept if any sample chose it. The chosen numbers are the layer's
    `budget`. By default the sinks and the last 32 tokens are kept and sink mass does not count in the 95 %;
    `preset=paper` has neither. Acts once, after the prompt: generated tokens are kept in addition.
    """

    name: ClassVar[str] = "gvote"
    family: ClassVar[str] = "budget-free"
    title: ClassVar[str] = "GVote"
    needs_budget: ClassVar[bool] = False
    paper, presets, reasons = published(__file__)

    p_nuc: float = Field(0.95, gt=0, le=1, description="share of the last query's attention that sets the step budget")
    samples: int = Field(8, ge=1, le=1024, description="sampled future queries (S)")
    n_future: int = Field(64, ge=1, description="positions after the prompt that the samples represent")
    rope_mode: Literal["average", "sampled"] = Field(
        "average", description="rotate samples by averaged cosines and sines (paper), or each at its own position"
    )
    group: Literal["union", "mean"] = Field(
        "union", description="query heads of a group choose separately, or by their mean"
    )
    step_queries: int = Field(1, ge=1, description="last queries the step budget is averaged over")
    minimum: int = Field(1, ge=1, description="smallest step budget")
    sinks: int = Field(4, ge=0, description="first tokens excluded from the Gaussian, and kept with `floors`")
    recent: int = Field(32, ge=0, description="last tokens kept with `floors`; the newest always stays")
    floors: bool = Field(True, description="the sinks and the recent tokens always stay")
    count_sinks: bool = Field(False, description="sink mass counts towards `p_nuc`, as printed")

    def pipeline(self) -> Pipeline:
        protect = LowestScore(self.sinks, self.recent) if self.floors else LowestScore()
        future = FutureQueries(self.samples, self.n_future, self.rope_mode)
        score = Ballots(future, self.p_nuc, self.sinks, self.minimum, self.count_sinks, self.step_queries, self.group)
        return Pipeline(score, ChosenSlots(protect), protect, Evict(), decode=False)
