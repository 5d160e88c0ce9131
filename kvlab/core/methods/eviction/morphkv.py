"""MorphKV: a cache of constant size, refined at every step by the attention of the newest queries."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.fused_window import FusedWindow
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class MorphKV(Method):
    """Keeps the newest tokens, and those older ones that the newest queries attend to, decided at every step.

    The queries' attention is summed or maximized over them. The prompt is compressed by the same rule. The authors'
    code evicts while generating only; its `evict_after` is `buffer`.
    """

    name: ClassVar[str] = "morphkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "MorphKV"

    window: int = Field(32, ge=1, description="last queries that vote; these tokens always stay")
    over: Literal["sum", "max"] = Field("sum", description="of a token's attention from these queries")
    buffer: int = Field(1, ge=1, description="generated tokens kept before each decision")

    paper: ClassVar[str] = "https://arxiv.org/abs/2503.00979"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "the sum over recent tokens, decided at every step",
            {
                "over": ("sum", "morphkv/models/patch_llama.py, sum_fused"),
                "buffer": (1, "the paper evicts at every step; patch_llama.py, evict_after 1"),
            },
        ),
        "code": Preset(
            "the README's run of LongGenBench",
            {
                "over": ("max", "README.md, --morph_type max_fused"),
                "buffer": (1, "the paper evicts at every step; patch_llama.py, evict_after 1"),
                "window": (200, "README.md, -ws 200 -mc 4000"),
            },
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "window": "that of the published LongBench runs (ws32); 200 of a short prompt would be the budget",
        "over": "the paper names both",
    }

    def pipeline(self) -> Pipeline:
        score = FusedWindow(self.window, self.over)
        return Pipeline(score, Uniform(), LowestScore(recent=self.window), Evict(), buffer=self.buffer)

    @property
    def own_window(self) -> int:
        """The window, whose tokens always stay."""
        return self.window
