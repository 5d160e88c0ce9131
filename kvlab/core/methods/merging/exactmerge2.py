"""exactmerge 2: kvlab's own method; a second pass decides what is kept, which is refitted to replace the rest."""

from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from kvlab.core.contract import LowestScore, Pipeline, Scorer, SecondPassRequest
from kvlab.core.contract.method import STORE_FIELD, DecodeCompression, Sinks, register
from kvlab.core.methods.allocators.model_wide import ModelWide
from kvlab.core.methods.eviction.kvzap import FILE_HELP
from kvlab.core.methods.scorers.kvzap import PredictedScore
from kvlab.core.methods.scorers.kvzip import Over, SecondPassAttention
from kvlab.core.methods.settlers.matching import MatchAttention
from kvlab.core.stores import ADAPTIVE

Share = Annotated[float, Field(gt=0, le=1)]
WINDOW_SHARE = 1 / 4  # of a head's slots that may belong to the window in a single pass


@register
class ExactMerge2(DecodeCompression):
    """Scores slots by a second pass, cuts over the whole model, quantizes what is kept, and refits its mass and values.

    The refit is a ridge regression over queries of the second pass and the prompt's last ones, against quantized keys;
    the newest slots are excluded. A byte budget is filled with quantized slots (`store=adaptive`). Without
    `second_pass` there is no second pass: networks fitted to the model predict the scores (KVzap), the window's tokens
    are kept, and values are refitted to its queries. Acts once, after the prompt; generated tokens are kept in addition
    to the budget, unless `decode=budget`.
    """

    name = "exactmerge2"
    family = "merging"
    title = "exactmerge 2 (kvlab)"

    store: str = Field(ADAPTIVE, **STORE_FIELD)
    second_pass: bool = Field(
        True,
        validation_alias=AliasChoices("second_pass", "rehearse"),  # the latter in runs and rows of earlier versions
        description="read the context a second time; otherwise networks predict the result",
    )
    heads: str = Field("mini", description=f"without `second_pass`: {FILE_HELP}")
    over: Over = Field(
        "rms", description="of the second pass's attention to a slot: maximum, root mean square, or mean"
    )
    window: int = Field(
        32, ge=1, description="last prompt queries used as references too; without `second_pass` their tokens stay"
    )
    continuations: int = Field(
        0,
        ge=0,
        le=64,
        description="with `second_pass`: sampled continuations of the prompt that are read too",
        exclude_if=lambda count: count == 0,  # rows measured before it existed are of the same settings
    )
    refit: Literal["both", "values", "none"] = Field(
        "both", description="refit log mass (only with `second_pass`) and values of kept slots, or less"
    )
    queries: int = Field(256, ge=1, description="reference queries from the second pass, per query head")
    window_weight: float = Field(4.0, gt=0, description="weight of each of the last prompt queries")
    ridge: float = Field(0.1, ge=0, description="regularization towards the slots' own mass")
    value_ridge: float = Field(1.0, ge=0, description="regularization towards the slots' own values")
    untouched: float = Field(0.1, ge=0, le=1, description="share of the best-scored slots that keep their values")
    newest: int = Field(4, ge=0, description="newest slots that keep mass and value, because the next tokens use them")
    buffer: int = Field(32, ge=1, description="with `decode=budget`: generated tokens kept before each decision")
    sinks: Sinks = 1
    recent: int = Field(64, ge=1, description="with `second_pass`: most last tokens that always stay")
    recent_share: Share | Literal["growing"] = Field(
        "growing",
        description="limits `recent` to this share of a head's slots; growing: 1/16 of the first 96, 1/4 of the others",
    )

    reasons = {
        "second_pass": "a second pass finds all needles at 5 % where 32 queries find none (8 prompts, question unseen)",
        "continuations": (
            "four take a third off SmolLM2's KL at 2 % (30 prompts) and make the prompt take four times as long"
        ),
        "heads": "networks belong to a model's weights; those of mini, mini-60 and mini-half are included",
        "over": "on text the root mean square is better than the maximum: KL .008 and .011 at 20 % (5 prompts)",
        "window": (
            "SnapKV's; in a single pass, keeping 8 tokens instead loses 15 of 20 lists with the question in sight on "
            "mini-60"
        ),
        "refit": "with values only text KL on mini at 20 % is .004 instead of .002 (5 prompts, with `second_pass`)",
        "queries": "doubling them makes the fit four times slower",
        "window_weight": "the last queries are few",
        "ridge": "without it the fit overfits the queries: KL 5, with it .002 (5 prompts, float32)",
        "value_ridge": "with .1 answers from lists lose .27 nats at 2 %, with 1 .02 (6 prompts); text KL is similar",
        "untouched": "GRKV's; with 0 text KL at 20 % was .007 instead of .004 (5 prompts, values only)",
        "newest": "with 0, lists with the question in sight at 10 % are right in 72 instead of 97 % (29 prompts)",
        "sinks": "attended tokens score high anyway; of 100 lists at 2 % mini-60 finds 56 with one, 47 with 4",
        "recent": "text KL on SmolLM2 at 5 % of the bytes is .0040 instead of .0051 with 8 (2 prompts)",
        "recent_share": "3/16 loses 2 of 26 lists on mini-half at 2 %, but takes a third off SmolLM2's text KL there",
        "decode": "as in the methods it is compared with; `budget` is for long generations",
        "buffer": "small, because they come in addition to the budget; only used with `decode=budget`",
    }

    def pipeline(self) -> Pipeline:
        again = SecondPassRequest(continuations=self.continuations) if self.second_pass else None
        select = LowestScore(self.sinks, self.recent, most=self.recent_share)
        score: Scorer = SecondPassAttention(self.over, second_pass=again or SecondPassRequest(), recalls=self.window)
        if again is None:
            select = LowestScore(self.sinks, self.window, most=WINDOW_SHARE)
            score = PredictedScore(self.heads, recalls=self.window)
        settle = MatchAttention(
            self.queries if again and self.refit != "none" else 0,
            self.window,
            self.window_weight,
            self.refit == "both" and self.second_pass,
            self.refit != "none",
            self.ridge,
            self.untouched,
            newest=self.newest,
            value_ridge=self.value_ridge,
            second_pass=again,
        )
        return self.with_decoding(Pipeline(score, ModelWide(select=select), select, settle, decode=False))
