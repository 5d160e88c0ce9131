"""Attention Matching: fewer slots that give reference queries the mass and output of all."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.parts import Allocator, Selector
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.contract.second_pass import Rehearsal
from kvlab.core.methods.allocators.model_wide import ModelWide
from kvlab.core.methods.allocators.profile import HeadProfile
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.lookahead.kvzip import RehearsedAttention
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.refitting.matching import MatchAttention
from kvlab.core.methods.settlers.refitting.pursuit import Pursuit


@register
class AttentionMatching(Method):
    """Keeps the keys a second pass attends to most, and refits their log mass and values by least squares.

    Acts once, after the prompt; generated tokens are kept in addition to the budget.
    """

    name: ClassVar[str] = "attention-matching"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "Attention Matching"
    paper, presets, reasons = published(__file__)

    keys: Literal["rms", "max", "mean", "omp"] = Field(
        "rms", description="which keys stay: by attention from the rehearsal, or by matching pursuit over its queries"
    )
    allocate: Literal["global", "profile", "equal"] = Field(
        "global", description="budgets: model-wide cut, the model's head profile, or equal heads"
    )
    profile: str = Field("mini", description="with allocate `profile`: mini, a file of `kvlab profile`, or even")
    queries: int = Field(256, ge=1, description="reference queries from the rehearsal, per query head")
    window: int = Field(32, ge=0, description="last prompt queries used as references too")
    window_weight: float = Field(4.0, gt=0, description="weight of each of those")
    bias: bool = Field(True, description="fit a log mass to each slot")
    values: bool = Field(True, description="fit a value to each slot")
    ridge: float = Field(0.1, ge=0, description="regularization towards the slots' own mass and values; 0: none")
    untouched: float = Field(0.1, ge=0, le=1, description="share of the best-scored slots that keep their values")
    box: float = Field(3.0, gt=0, description="bound of the fitted log mass, in both directions")
    steps: int = Field(2, ge=0, le=1000, description="projected gradient steps of the fit of log mass")
    on_policy: bool = Field(
        False, description="fit each layer to queries of a pass through the layers compressed so far"
    )
    study: int = Field(
        0, ge=0, le=4096, description="tokens the model writes to each of three requests; their queries are used too"
    )
    flat: bool = Field(False, description="give queries with flat attention more weight in the fit of log mass")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: int = Field(16, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        rehearsal = Rehearsal(on_policy=self.on_policy, study=self.study)
        score = RehearsedAttention("rms" if self.keys == "omp" else self.keys, rehearsal=rehearsal)
        select: Selector = LowestScore(self.sinks, self.recent)
        allocate: Allocator = Uniform()
        if self.allocate == "global":
            allocate = ModelWide(select=select)
        elif self.allocate == "profile":
            allocate = HeadProfile(self.profile, select=select)
        if self.keys == "omp":
            select = Pursuit(self.sinks, self.recent, references=self.queries, window=self.window)
        settle = MatchAttention(
            self.queries,
            self.window,
            self.window_weight,
            self.bias,
            self.values,
            self.ridge,
            self.untouched,
            self.box,
            self.steps,
            self.flat,
            rehearsal,
        )
        return Pipeline(score, allocate, select, settle, decode=False)
