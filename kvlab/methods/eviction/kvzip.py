"""KVzip: what the model needs to repeat its context is what any question about it can need."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.methods.allocators.model_wide import ModelWide
from kvlab.methods.allocators.uniform import Uniform
from kvlab.methods.base import Method, register
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.rehearsal import Rehearsal
from kvlab.methods.scorers.to_come.rehearsed import Over, RehearsedAttention
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.eviction.evict import Evict

SCORE = "attention/score.py"
WRAPPER = "model/wrapper.py"
CHUNKED = (
    "A query's attention is normalised there over the system prompt, its own chunk of the context and the repetition; "
    "here over the whole prompt. The chat template's own tokens around the request are left out. Batches of one there."
)
ASKED = "\n\nRepeat the previous context exactly."


@register
class KVzip(Method):
    """Reads the context once more over the full cache, and keeps the pairs of it that this looked at most.

    Knows no question: what was kept serves any. Acts once, after the prompt; generated tokens are kept on top of the
    budget. Costs a second pass over the context, which counts as prompt time.
    """

    name: ClassVar[str] = "kvzip"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "KVzip"
    paper: ClassVar[str] = "https://arxiv.org/abs/2505.23416"

    presets: ClassVar = {
        "paper": Preset(
            "the paper's non-uniform eviction of pairs",
            {
                "level": ("pair", "section 3.3: one threshold over all layers and heads"),
                "over": ("max", "equation 2"),
                "piece": (2000, "section 3.4, chunks of 2K tokens"),
                "ask": (ASKED, "figure 5"),
                "sinks": (4, "the system prompt, which always stays; kvpress has n_sink 4"),
                "recent": (1, "no window is protected; the newest token must stay here"),
            },
            CHUNKED,
        ),
        "code": Preset(
            "what the authors' code does where it is told nothing",
            {
                "level": ("pair", f"{WRAPPER}, prune"),
                "over": ("max", f"{SCORE}, amax over queries and the group"),
                "piece": (2000, f"{SCORE}, chunk_size"),
                "ask": (ASKED, f"{WRAPPER}, scoring"),
                "sinks": (4, "the system prompt is never evicted"),
                "recent": (1, f"{WRAPPER}: no window"),
            },
            f"{CHUNKED} Softmax is in the model's own type there, float32 here.",
        ),
        "uniform": Preset("pairs, as many in every head", {"level": ("uniform", f"{WRAPPER}, pair-uniform")}, CHUNKED),
        "head": Preset(
            "whole heads",
            {"level": ("head", "section 4.3, context-independent eviction")},
            f"{CHUNKED} There a head's score is the highest on one English sample, here on the prompt itself.",
        ),
    }
    reasons: ClassVar = {
        "level": "the paper's; `uniform` and `head` are its ablation and its form without a second pass",
        "ask": "a newline; `mini` repeats no better behind an instruction, and no template's words enter the scores",
        "piece": "the largest power of two near the published 2,000: short texts are read again at once",
        "window": "0: the rehearsal alone judges, as published",
    }

    level: Literal["pair", "uniform", "head"] = Field(
        "pair", description="pairs of all layers and heads compete, pairs within each head, or whole heads"
    )
    over: Over = Field("max", description="of the rehearsal's attention to a pair: largest, root mean square, or mean")
    ask: str = Field("\n", description="text in front of the context when it is read again")
    piece: int = Field(2048, ge=16, description="tokens of the context that are read again at a time")
    window: int = Field(0, ge=0, description="last prompt queries whose largest attention counts as well")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: int = Field(1, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        """Attention from the rehearsal, one cut over the model, eviction, prefill only."""
        score = RehearsedAttention(self.over, self.window, Rehearsal(self.ask, self.piece))
        select = LowestScore(self.sinks, self.recent)
        allocate = (
            Uniform() if self.level == "uniform" else ModelWide("head" if self.level == "head" else "slot", select)
        )
        return Pipeline(score, allocate, select, Evict(), decode=False)
