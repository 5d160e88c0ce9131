"""exactmerge 2: kvlab's own. What the text asks of itself decides what stays, and what stays repairs what left."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.methods.allocators.model_wide import ModelWide
from kvlab.methods.allocators.profile import HeadProfile
from kvlab.methods.base import Method, register
from kvlab.methods.pipeline import Allocator, Pipeline, Scorer
from kvlab.methods.rehearsal import Rehearsal
from kvlab.methods.scorers.around.alternating import Alternating
from kvlab.methods.scorers.attention.window import WindowAttention
from kvlab.methods.scorers.contents.keys_alone import UnusualKeys
from kvlab.methods.scorers.to_come.rehearsed import Over, RehearsedAttention
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.refitting.checked_match import CheckedMatch, Fit

KERNEL = 7


@register
class ExactMerge2(Method):
    """Scores slots by a second reading, cuts once over the model, and refits the values of what stays.

    The refit is a ridge regression over queries of the rehearsal and the prompt's last ones, made for each head only
    where queries that were held back gain by it. Without `rehearse` nothing is read again: the model's profile splits
    the budget, unusual keys and SnapKV's window take turns, and the refit is to the last queries. Acts once,
    after the prompt; generated tokens are kept on top of the budget.
    """

    name: ClassVar[str] = "exactmerge2"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "exactmerge 2 (kvlab)"
    paper: ClassVar[str] = ""

    reasons: ClassVar = {
        "rehearse": "a second reading finds all needles at 5 % where 32 queries find none (8 prompts, question unseen)",
        "profile": "a profile belongs to a model's weights; that of mini ships",
        "over": "on text the root mean square is closer than the largest: KL .008 and .011 at 20 % (5 prompts)",
        "window": "SnapKV's",
        "refit": "ours; a head does without, or with values alone, where that serves held-back queries better",
        "worst": "an entry of a list is one query in a thousand, which a mean would not see",
        "queries": "twice as many slow the fit down four times",
        "window_weight": "the last queries are few",
        "ridge": "without one the fit is to the queries, not the text: KL 5, with it .002 (5 prompts, float32)",
        "untouched": "GRKV's; with 0 text KL at 20 % was .007 instead of .004 (5 prompts, values alone)",
        "sinks": "as the other methods here",
        "recent": "enough for the words at hand; more would be taken from other layers",
    }

    rehearse: bool = Field(True, description="read the context a second time; without, a single pass and a profile")
    profile: str = Field("mini", description="without `rehearse`: head shares, mini or a file of `kvlab profile`")
    over: Over = Field("rms", description="of the rehearsal's attention to a slot: largest, root mean square, or mean")
    window: int = Field(
        32, ge=1, description="last prompt queries that are matched as well; without `rehearse` they score"
    )
    refit: Literal["checked", "both", "values", "none"] = Field(
        "checked", description="log mass and values (both), values, nothing; or for each head what serves it best"
    )
    worst: float = Field(0.1, gt=0, le=1, description="share of the held-back queries that the choice looks at")
    queries: int = Field(256, ge=1, description="queries of the rehearsal, for each query head, that are matched")
    window_weight: float = Field(4.0, gt=0, description="how much each of the last prompt queries counts")
    ridge: float = Field(0.1, ge=0, description="pull towards the slots' own values")
    untouched: float = Field(0.1, ge=0, le=1, description="share of the slots, the best-scored, that keep their values")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: int = Field(16, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        """A rehearsal's attention under one cut, or two scores in turns under a profile; refitted, prefill only."""
        select, again = LowestScore(self.sinks, self.recent), Rehearsal() if self.rehearse else None
        score: Scorer = RehearsedAttention(self.over)
        allocate: Allocator = ModelWide(select=select)
        if not self.rehearse:
            score = Alternating(WindowAttention(self.window, KERNEL), UnusualKeys())
            allocate = HeadProfile(self.profile, "shares", select)
        fits: tuple[Fit, ...] = ("none", "values", "both") if self.refit == "checked" else (self.refit,)
        settle = CheckedMatch(
            fits,
            self.worst,
            self.queries if self.rehearse else 0,
            self.window,
            self.window_weight,
            self.ridge,
            self.untouched,
            rehearsal=again,
        )
        return Pipeline(score, allocate, select, settle, decode=False)
