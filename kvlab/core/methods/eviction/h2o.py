"""H2O: heavy hitters by accumulated attention."""

from typing import Literal

from pydantic import Field

from kvlab.core.contract import LowestScore, Method, Pipeline, Preset, register
from kvlab.core.methods.scorers.accumulated_attention import AccumulatedAttention


@register
class H2O(Method):
    """Keeps the tokens with the most attention accumulated over all queries, and a recent window.

    The sum is not divided by the number of queries that could see a token (as in the authors' code), so early tokens
    are favoured and sinks need no protection. Grouped queries are averaged.
    """

    name = "h2o"
    family = "eviction"
    title = "H2O"
    added = ("aggregate", "decay")

    recent: float = Field(0.5, gt=0, lt=1, description="share of the budget for the most recent tokens")
    aggregate: Literal["mean", "max"] = Field("mean", description="sum over queries and mean over heads, or maximum")
    decay: float = Field(
        1.0, ge=0, le=1, description="weight of a query relative to the next one; 0: only the newest counts"
    )

    paper = "https://arxiv.org/abs/2306.14048"
    presets = {
        "paper": Preset(
            "the paper's tasks: as many heavy hitters as recent tokens",
            {
                "recent": (0.5, "h2o_hf/README.md, the evaluation commands: heavy_ratio = recent_ratio = .1"),
            },
            beyond="The original has one query head per KV head and batches of one; grouped queries are averaged here.",
        ),
        "code": Preset(
            "the authors' simulation with masks, for benchmarks and generation",
            {
                "recent": (
                    0.5,
                    "h2o_hf/scripts/generation/llama_h2o.sh: heavy_ratio = recent_ratio = .1 of the prompt",
                ),
            },
            beyond=(
                "The original has one query head per KV head and batches of one; grouped queries are averaged here. "
                "It masks entries instead of freeing them, and restarts the score of a masked one at 0."
            ),
        ),
        "real-drop": Preset(
            "the defaults of the authors' program that frees memory, 4 heavy and 512 recent slots",
            {
                "recent": (0.9922480620155039, "h2o_hf/utils_real_drop/modify_llama.py, H2OKVCache_LayerWise"),
            },
            beyond="The original has one query head per KV head and batches of one; grouped queries are averaged here.",
        ),
        "streaming": Preset(
            "the authors' streams, 48 heavy and 2,000 recent slots",
            {
                "recent": (0.9765625, "h2o_hf/scripts/streaming/eval.sh"),
            },
            beyond=(
                "The original has one query head per KV head and batches of one; grouped queries are averaged here. "
                "It counts positions inside the cache."
            ),
        ),
    }
    reasons = {
        "recent": "the paper's; the streaming programs keep almost no heavy hitters",
        "aggregate": "the paper's sum; the maximum of all queries is SnapKV's and DefensiveKV's question asked of H2O",
        "decay": "the paper's sum; InertiaKV (arXiv 2609.03515) compares one step, all steps and a decay of .8",
    }

    def pipeline(self) -> Pipeline:
        score = AccumulatedAttention(self.decay, aggregate=self.aggregate)
        return Pipeline(score, select=LowestScore(recent=self.recent))
