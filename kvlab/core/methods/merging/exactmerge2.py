"""exactmerge 2: kvlab's own method; a second pass decides what is kept, which is refitted to replace the rest."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.decode_buffer import GoesOn
from kvlab.core.contract.method import add_stores, register
from kvlab.core.contract.parts import Scorer
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.contract.second_pass import Rehearsal
from kvlab.core.methods.allocators.model_wide import ModelWide
from kvlab.core.methods.eviction.kvzap import FILE_HELP
from kvlab.core.methods.scorers.lookahead.kvzap import PredictedScore
from kvlab.core.methods.scorers.lookahead.kvzip import Over, RehearsedAttention
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.refitting.matching import MatchAttention
from kvlab.core.stores import ADAPTIVE

Share = Annotated[float, Field(gt=0, le=1)]
WINDOW_SHARE = 1 / 4  # of a head's slots that may belong to the window in a single pass


@register
class ExactMerge2(GoesOn):
    """Scores slots by a second pass, cuts over the whole model, quantizes what is kept, and refits its mass and values.

    The refit is a ridge regression over queries of the rehearsal and the prompt's last ones, against quantized keys;
    the newest slots are excluded. A byte budget is filled with quantized slots (`store=adaptive`). Without `rehearse`
    there is no second pass: networks fitted to the model predict the scores (KVzap), the window's tokens are kept, and
    values are refitted to its queries. Acts once, after the prompt; generated tokens are kept in addition to the
    budget, unless `decode=budget`.
    """

    name: ClassVar[str] = "exactmerge2"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "exactmerge 2 (kvlab)"
    paper, presets, reasons = published(__file__)

    store: str = Field(ADAPTIVE, description="storage format of settled slots", json_schema_extra=add_stores)
    rehearse: bool = Field(True, description="read the context a second time; otherwise networks predict the result")
    heads: str = Field("mini", description=f"without `rehearse`: {FILE_HELP}")
    over: Over = Field("rms", description="of the rehearsal's attention to a slot: maximum, root mean square, or mean")
    window: int = Field(
        32, ge=1, description="last prompt queries used as references too; without `rehearse` their tokens stay"
    )
    continuations: int = Field(
        0,
        ge=0,
        le=64,
        description="with `rehearse`: sampled continuations of the prompt that are read too",
        exclude_if=lambda count: count == 0,  # rows measured before it existed are of the same settings
    )
    refit: Literal["both", "values", "none"] = Field(
        "both", description="refit log mass (only with `rehearse`) and values of kept slots, or less"
    )
    queries: int = Field(256, ge=1, description="reference queries from the rehearsal, per query head")
    window_weight: float = Field(4.0, gt=0, description="weight of each of the last prompt queries")
    ridge: float = Field(0.1, ge=0, description="regularization towards the slots' own mass")
    value_ridge: float = Field(1.0, ge=0, description="regularization towards the slots' own values")
    untouched: float = Field(0.1, ge=0, le=1, description="share of the best-scored slots that keep their values")
    newest: int = Field(4, ge=0, description="newest slots that keep mass and value, because the next tokens use them")
    buffer: int = Field(32, ge=1, description="with `decode=budget`: generated tokens kept before each decision")
    sinks: int = Field(1, ge=0, description="first tokens that always stay")
    recent: int = Field(64, ge=1, description="with `rehearse`: most last tokens that always stay")
    recent_share: Share | Literal["growing"] = Field(
        "growing",
        description="limits `recent` to this share of a head's slots; growing: 1/16 of the first 96, 1/4 of the others",
    )

    def pipeline(self) -> Pipeline:
        again = Rehearsal(continuations=self.continuations) if self.rehearse else None
        select = LowestScore(self.sinks, self.recent, most=self.recent_share)
        score: Scorer = RehearsedAttention(self.over, rehearsal=again or Rehearsal(), recalls=self.window)
        if again is None:
            select = LowestScore(self.sinks, self.window, most=WINDOW_SHARE)
            score = PredictedScore(self.heads, recalls=self.window)
        settle = MatchAttention(
            self.queries if again and self.refit != "none" else 0,
            self.window,
            self.window_weight,
            self.refit == "both" and self.rehearse,
            self.refit != "none",
            self.ridge,
            self.untouched,
            newest=self.newest,
            value_ridge=self.value_ridge,
            rehearsal=again,
        )
        return self.going_on(Pipeline(score, ModelWide(select=select), select, settle, decode=False))
