"""KVzip: keep what the model needs to reconstruct its context, since any question may need it."""

from typing import Literal

from pydantic import Field

from kvlab.core.contract import LowestScore, Method, Pipeline, Preset, SecondPassRequest, Uniform, register
from kvlab.core.contract.method import Recent, Sinks
from kvlab.core.methods.allocators.model_wide import ModelWide
from kvlab.core.methods.scorers.kvzip import Over, SecondPassAttention


@register
class KVzip(Method):
    """Reads the context again over the full cache, and keeps the pairs that got most attention.

    Independent of the question: what was kept serves any. Acts once, after the prompt; generated tokens are kept in
    addition to the budget. Costs a second pass over the context, which counts as prompt time.
    """

    name = "kvzip"
    family = "eviction"
    title = "KVzip"

    level: Literal["pair", "uniform", "head"] = Field(
        "pair", description="pairs of all layers and heads compete, pairs within each head, or whole heads"
    )
    over: Over = Field(
        "max", description="of the second pass's attention to a pair: maximum, root mean square, or mean"
    )
    ask: str = Field("\n", description="text put before the context when it is read again")
    piece: int = Field(2048, ge=16, description="tokens of the context read again at a time")
    window: int = Field(0, ge=0, description="last prompt queries whose largest attention counts too")
    sinks: Sinks = 4
    recent: Recent = 1

    paper = "https://arxiv.org/abs/2505.23416"
    presets = {
        "paper": Preset(
            "the paper's non-uniform eviction of pairs",
            {
                "level": ("pair", "section 3.3: one threshold over all layers and heads"),
                "over": ("max", "equation 2"),
                "piece": (2000, "section 3.4, chunks of 2K tokens"),
                "ask": ("\n\nRepeat the previous context exactly.", "figure 5"),
                "sinks": (4, "the system prompt, which always stays; kvpress has n_sink 4"),
                "recent": (1, "no window is protected; the newest token is always kept here"),
            },
            beyond=(
                "The original normalizes a query's attention over the system prompt, its own chunk of the context and "
                "the repetition; here over the whole prompt, without the chat template's tokens around the request. "
                "The original has batches of one."
            ),
        ),
        "code": Preset(
            "the authors' code with its defaults",
            {
                "level": ("pair", "model/wrapper.py, prune"),
                "over": ("max", "attention/score.py, amax over queries and the group"),
                "piece": (2000, "attention/score.py, chunk_size"),
                "ask": ("\n\nRepeat the previous context exactly.", "model/wrapper.py, scoring"),
                "sinks": (4, "the system prompt is never evicted"),
                "recent": (1, "model/wrapper.py: no window"),
            },
            beyond=(
                "The original normalizes a query's attention over the system prompt, its own chunk of the context and "
                "the repetition; here over the whole prompt, without the chat template's tokens around the request. "
                "The original has batches of one. Its softmax uses the model's dtype, here float32."
            ),
        ),
        "uniform": Preset(
            "pairs, equally many per head",
            {
                "level": ("uniform", "model/wrapper.py, pair-uniform"),
            },
            beyond=(
                "The original normalizes a query's attention over the system prompt, its own chunk of the context and "
                "the repetition; here over the whole prompt, without the chat template's tokens around the request. "
                "The original has batches of one."
            ),
        ),
        "head": Preset(
            "whole heads",
            {
                "level": ("head", "section 4.3, context-independent eviction"),
            },
            beyond=(
                "The original normalizes a query's attention over the system prompt, its own chunk of the context and "
                "the repetition; here over the whole prompt, without the chat template's tokens around the request. "
                "The original has batches of one. The original takes a head's score from one English sample, here "
                "from the prompt."
            ),
        ),
    }
    reasons = {
        "level": "the paper's; `uniform` is its ablation, `head` its form without a second pass",
        "ask": "a newline; an instruction does not help `mini`, and no template text enters the scores",
        "piece": "a power of two near the published 2,000; short texts are read again at once",
        "window": "0: only the second pass counts, as published",
    }

    def pipeline(self) -> Pipeline:
        score = SecondPassAttention(self.over, self.window, SecondPassRequest(self.ask, self.piece))
        select = LowestScore(self.sinks, self.recent)
        allocate = (
            Uniform() if self.level == "uniform" else ModelWide("head" if self.level == "head" else "slot", select)
        )
        return Pipeline(score, allocate, select, decode=False)
