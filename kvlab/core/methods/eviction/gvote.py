"""GVote: sampled future queries choose how much each head keeps; no budget is given."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
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

    paper: ClassVar[str] = "https://arxiv.org/abs/2509.03136"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "algorithm 1 with the recommended values",
            {
                "p_nuc": (0.95, "section 3.5 (recommended)"),
                "samples": (8, "section 3.5 (8 or more)"),
                "rope_mode": ("average", "algorithm 1, lines 6 and 7"),
                "step_queries": (1, "algorithm 1, lines 1 to 3: the current query"),
                "minimum": (1, "algorithm 1, line 3: the step budget is the candidate set's size, whatever it is"),
                "floors": (False, "algorithm 1, lines 10 and 11: only the union is kept"),
                "count_sinks": (True, "algorithm 1, lines 1 and 2: top-p of all of the attention"),
            },
            beyond=(
                "The paper does not give the number of future positions and of first tokens excluded from the "
                "Gaussian. Here the newest token is always kept."
            ),
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "n_future": "not given; measured: 8 .0295, 64 .0288, 512 .0292",
        "group": "not given; union .0288 (3,110), mean .0372 (2,824)",
        "sinks": "not given; 4 as in ExpectedAttention, which the paper cites",
        "recent": "our choice, only used with `floors`: 8 .0324 (3,074), 32 .0288 (3,110), 64 .0282 (3,161)",
        "floors": (
            "as printed the last tokens, the end of the question, can be lost: .0373 (3,041) instead of .0288 (3,110)"
        ),
        "count_sinks": "as printed the step budget is 1 if a sink holds the mass: .0556 (3,018) instead of .0288",
    }

    def pipeline(self) -> Pipeline:
        protect = LowestScore(self.sinks, self.recent) if self.floors else LowestScore()
        future = FutureQueries(self.samples, self.n_future, self.rope_mode)
        score = Ballots(future, self.p_nuc, self.sinks, self.minimum, self.count_sinks, self.step_queries, self.group)
        return Pipeline(score, ChosenSlots(protect), protect, Evict(), decode=False)
