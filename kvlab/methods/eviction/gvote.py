"""GVote: no budget is given; sampled future queries choose how much each head keeps."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.methods.allocators.ballots import ChosenSlots
from kvlab.methods.base import Method, register
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.scorers.to_come.ballots import Ballots
from kvlab.methods.scorers.to_come.future import FutureQueries
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.eviction.evict import Evict


@register
class GVote(Method):
    """Keeps the union of what sampled future queries would look at; layers and heads find their own budgets.

    A sample is a query made from a Gaussian of the attention module's inputs. It chooses as many slots as the last
    query needs for 95 % of its attention, and a slot stays if any sample chose it. The chosen budgets are the layer's
    `budget`. By default the sinks and the last 32 tokens stay and sink mass does not count in the 95 %; `preset=paper`
    has neither. Acts once, after the prompt: generated tokens are kept on top.
    """

    name: ClassVar[str] = "gvote"
    family: ClassVar[str] = "budget-free"
    title: ClassVar[str] = "GVote"
    paper: ClassVar[str] = "https://arxiv.org/abs/2509.03136"
    needs_budget: ClassVar[bool] = False

    presets: ClassVar = {
        "paper": Preset(
            "algorithm 1 with the recommended values",
            {
                "p_nuc": (0.95, "section 3.5 (recommended)"),
                "samples": (8, "section 3.5 (8 or more)"),
                "rope_mode": ("average", "algorithm 1, lines 6 and 7"),
                "step_queries": (1, "algorithm 1, lines 1 to 3: the current query"),
                "minimum": (1, "algorithm 1, line 3: the step budget is the candidate set's size, whatever it is"),
                "floors": (False, "algorithm 1, lines 10 and 11: nothing but the union is kept"),
                "count_sinks": (True, "algorithm 1, lines 1 and 2: top-p of all of the attention"),
            },
            "The number of future positions and of first tokens left out of the Gaussian are not given. The newest "
            "token always stays here.",
        )
    }
    # Measured on mini: KL to the full cache over the 64 tokens after prompts of 700, mean of 8 (live KiB at the end).
    reasons: ClassVar = {
        "n_future": "not given; ours: 8 .0295, 64 .0288, 512 .0292",
        "group": "not given; a key that one query head of its group needs is needed: .0288 (3,110), mean .0372 (2,824)",
        "sinks": "not given; 4 as in ExpectedAttention, which the paper cites for its Gaussians",
        "recent": "ours, only felt with `floors`: 8 .0324 (3,074), 32 .0288 (3,110), 64 .0282 (3,161)",
        "floors": "as printed the last tokens can be lost, and the question's end: .0373 (3,041) for .0288 (3,110)",
        "count_sinks": "as printed the step budget is 1 wherever a sink holds the mass: .0556 (3,018) for .0288",
    }

    p_nuc: float = Field(0.95, gt=0, le=1, description="share of the last query's attention that sets the step budget")
    samples: int = Field(8, ge=1, le=1024, description="sampled future queries (S)")
    n_future: int = Field(64, ge=1, description="positions ahead of the prompt the samples stand for")
    rope_mode: Literal["average", "sampled"] = Field(
        "average", description="samples rotated by averaged cosines and sines (paper), or each at a position of its own"
    )
    group: Literal["union", "mean"] = Field(
        "union", description="query heads of a group choose alone, or as their mean"
    )
    step_queries: int = Field(1, ge=1, description="last queries the step budget is averaged over")
    minimum: int = Field(1, ge=1, description="smallest step budget")
    sinks: int = Field(4, ge=0, description="first tokens left out of the Gaussian, and kept with `floors`")
    recent: int = Field(32, ge=0, description="last tokens kept with `floors`; the newest always stays")
    floors: bool = Field(True, description="the sinks and the recent tokens always stay")
    count_sinks: bool = Field(False, description="sink mass counts towards `p_nuc`, as printed")

    def pipeline(self) -> Pipeline:
        """Ballots of sampled queries, as many slots as were chosen, prefill only."""
        protect = LowestScore(self.sinks, self.recent) if self.floors else LowestScore()
        future = FutureQueries(self.samples, self.n_future, self.rope_mode)
        score = Ballots(future, self.p_nuc, self.sinks, self.minimum, self.count_sinks, self.step_queries, self.group)
        return Pipeline(score, ChosenSlots(protect), protect, Evict(), decode=False)
