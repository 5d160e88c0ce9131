"""H2O: heavy hitters by accumulated attention."""

from typing import ClassVar

from pydantic import Field

from kvlab.methods.allocators.uniform import Uniform
from kvlab.methods.base import Method, register
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.scorers.attention.accumulated import AccumulatedAttention
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.eviction.evict import Evict

GROUPED = "One query head a KV head, batches of one; grouped queries are averaged here."


@register
class H2O(Method):
    """Keeps the tokens with the most attention accumulated over all queries, and a recent window.

    The sum is not divided by how many queries could see a token (the authors' code), so early tokens are favoured and
    no sinks need protection. Grouped queries are averaged.
    """

    name: ClassVar[str] = "h2o"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "H2O"
    paper: ClassVar[str] = "https://arxiv.org/abs/2306.14048"

    presets: ClassVar = {
        "paper": Preset(
            "the paper's tasks: as many heavy hitters as recent tokens",
            {"recent": (0.5, "h2o_hf/README.md, the evaluation commands: heavy_ratio = recent_ratio = .1")},
            GROUPED,
        ),
        "code": Preset(
            "the authors' simulation with masks, for benchmarks and generation",
            {"recent": (0.5, "h2o_hf/scripts/generation/llama_h2o.sh: heavy_ratio = recent_ratio = .1 of the prompt")},
            f"{GROUPED} Entries are hidden, not freed, and the score of a hidden one restarts at 0.",
        ),
        "real-drop": Preset(
            "the defaults of the authors' program that frees memory, 4 heavy and 512 recent slots",
            {"recent": (512 / 516, "h2o_hf/utils_real_drop/modify_llama.py, H2OKVCache_LayerWise")},
            GROUPED,
        ),
        "streaming": Preset(
            "the authors' streams, 48 heavy and 2,000 recent slots",
            {"recent": (2000 / 2048, "h2o_hf/scripts/streaming/eval.sh")},
            f"{GROUPED} Positions are counted inside the cache.",
        ),
    }
    reasons: ClassVar = {"recent": "the paper's; the programs for streams keep next to no heavy hitters"}

    recent: float = Field(0.5, gt=0, lt=1, description="share of the budget for the most recent tokens")

    def pipeline(self) -> Pipeline:
        """Accumulated attention, a recent window protected."""
        return Pipeline(AccumulatedAttention(), Uniform(), LowestScore(recent=self.recent), Evict())
