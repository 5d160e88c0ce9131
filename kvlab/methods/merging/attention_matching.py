"""Attention Matching: fewer slots that give chosen queries the mass and the output of all."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.methods.allocators.model_wide import ModelWide
from kvlab.methods.allocators.profile import HeadProfile
from kvlab.methods.allocators.uniform import Uniform
from kvlab.methods.base import Method, register
from kvlab.methods.pipeline import Allocator, Pipeline, Selector
from kvlab.methods.presets import Preset
from kvlab.methods.rehearsal import Rehearsal
from kvlab.methods.scorers.to_come.rehearsed import RehearsedAttention
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.selectors.pursuit import Pursuit
from kvlab.methods.settlers.refitting.matching import MatchAttention

BEST = "compaction/algorithms/best.py and highest_attention_keys.py"
BEYOND = (
    "The published runs also ask what the model itself writes about the text (`study`), which a small model cannot; "
    "there on-policy queries are those of self-study alone, here of the repetition too. Their head budgets come from "
    "perplexity curves, here from a cut over the model. The chat template around the text is kept there."
)


@register
class AttentionMatching(Method):
    """Keeps the keys a second reading attends to most, and refits their log mass and values by least squares.

    Acts once, after the prompt; generated tokens are kept on top of the budget.
    """

    name: ClassVar[str] = "attention-matching"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "Attention Matching"
    paper: ClassVar[str] = "https://arxiv.org/abs/2602.16284"

    presets: ClassVar = {
        "paper": Preset(
            "highest attention keys, bias and values, without a ridge",
            {
                "keys": ("rms", "section 3: root mean square over queries"),
                "bias": (True, "equation of mass matching"),
                "values": (True, "equation of attention matching"),
                "ridge": (0.0, "plain least squares"),
                "box": (3.0, f"{BEST}: exp(-3) to exp(3)"),
                "window": (0, "the repetition's queries alone, without self-study"),
                "on_policy": (True, "section 3: queries are taken through the layers already compressed"),
                "untouched": (0.0, "every value is fitted"),
            },
            BEYOND,
        ),
        "code": Preset(
            "the authors' code with highest attention keys",
            {
                "keys": ("rms", f"{BEST}: its setting called max runs the root mean square"),
                "bias": (True, BEST),
                "values": (True, BEST),
                "ridge": (0.0, f"{BEST}: lstsq"),
                "box": (3.0, BEST),
                "steps": (2, f"{BEST}, nnls_iters"),
                "flat": (True, "compaction/algorithms/base.py: exp logits over the row's largest"),
                "window": (0, "the repetition's queries alone"),
                "on_policy": (False, "the code reads only self-study again; its repetition is off-policy"),
                "untouched": (0.0, "every value is fitted"),
            },
            BEYOND,
        ),
        "omp": Preset(
            "keys by orthogonal matching pursuit",
            {
                "keys": ("omp", "compaction/algorithms/omp.py"),
                "bias": (True, "omp.py"),
                "values": (True, "omp.py"),
                "ridge": (0.0, "omp.py: lstsq"),
                "box": (7.0, "omp.py: up to exp(7)"),
                "steps": (0, "omp.py"),
            },
            f"{BEYOND} It takes 1 to 4 keys a step there, here a 24th of them.",
        ),
    }
    reasons: ClassVar = {
        "box": "the code's for highest attention keys; pursuit lets a few slots stand for many",
        "values": "the paper's; without, text KL on mini at 20 % is .008 instead of .004 (5 prompts, no bias)",
        "keys": "the paper's main runs; matching pursuit is slower and, with equal heads, was no better on mini",
        "allocate": "the cut needs no profile of the model; the published budgets are a profile",
        "ridge": "without one text KL on mini at 20 % is 5.4 instead of .002 (5 prompts, fitted in single precision)",
        "profile": "a profile belongs to a model's weights; mini's and mini-60's ship",
        "window": "the next token's queries are like the last ones; text KL on mini is the same without (5 prompts)",
        "untouched": "GRKV's; with 0 text KL on mini at 20 % is .007 instead of .004 (5 prompts, no bias)",
        "queries": "twice as many slow the fit down four times",
        "steps": "the code's for highest attention keys",
        "flat": "the paper has no such weights; flat rows would dominate",
        "on_policy": "the published runs have it; a reading a layer, and no gain was seen on mini",
        "study": "64 tokens make text KL on mini at 5 % no better (.145 to .144, 6 prompts), its prompt 5 times slower",
        "window_weight": "the last queries are few",
        "sinks": "as the other methods here",
        "recent": "as the other methods here",
    }

    keys: Literal["rms", "max", "mean", "omp"] = Field(
        "rms", description="which keys stay: by attention from the rehearsal, or by matching pursuit over its queries"
    )
    allocate: Literal["global", "profile", "equal"] = Field(
        "global", description="budgets: one cut over the model, its profile, or equal heads"
    )
    profile: str = Field("mini", description="with allocate `profile`: mini, a file of `kvlab profile`, or even")
    queries: int = Field(256, ge=1, description="queries of the rehearsal, for each query head, that are matched")
    window: int = Field(32, ge=0, description="last prompt queries that are matched as well")
    window_weight: float = Field(4.0, gt=0, description="how much each of those counts")
    bias: bool = Field(True, description="fit a log mass to each slot")
    values: bool = Field(True, description="fit a value to each slot")
    ridge: float = Field(0.1, ge=0, description="pull towards the slots' own mass and values; 0: plain least squares")
    untouched: float = Field(0.1, ge=0, le=1, description="share of the slots, the best-scored, that keep their values")
    box: float = Field(3.0, gt=0, description="bound of a fitted log mass, both ways")
    steps: int = Field(2, ge=0, le=1000, description="projected gradient steps of the fit of log mass")
    on_policy: bool = Field(
        False, description="each layer is fitted to queries of a reading through the layers already compressed"
    )
    study: int = Field(
        0, ge=0, le=4096, description="tokens the model writes to each of three requests; these queries are matched too"
    )
    flat: bool = Field(False, description="queries with flat attention count more in the fit of log mass")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: int = Field(16, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        """Attention from the rehearsal, the model's budget, the best or the pursued keys, refitted; prefill only."""
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
