"""PyramidKV: SnapKV's scores under budgets that fall with depth."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.methods.allocators.pyramid import Pyramid
from kvlab.methods.base import register
from kvlab.methods.eviction.window_scored import POOLED_EDGES, SHARED_HEADS, WindowEvicting
from kvlab.methods.going_on import GOING_ON
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.eviction.evict import Evict


@register
class PyramidKV(WindowEvicting):
    """Gives early layers, where attention is spread, more slots than late ones, where it gathers on few tokens.

    The default `paper` is a linear schedule with an exact total. `code` is the authors' schedule with whole-number
    steps, whose total (too large by up to L (L - 1) / 2 slots as published) is corrected. Acts once, after the prompt:
    generated tokens are kept on top of the budget.
    """

    name: ClassVar[str] = "pyramidkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "PyramidKV"
    paper: ClassVar[str] = "https://arxiv.org/abs/2406.02069"

    presets: ClassVar = {
        "paper": Preset(
            "the paper's LongBench tables",
            {
                "variant": ("paper", "the arithmetic sequence over layers"),
                "beta": (20.0, "run_longbench.py's cluster, which made the tables: beta = 20"),
                "window": (8, "run_longbench.py, window_sizes"),
                "kernel": (7, "run_longbench.py, kernel_sizes"),
                "pooling": ("max", "run_longbench.py"),
            },
            SHARED_HEADS,
        ),
        "code": Preset(
            "the authors' class as their runner calls it",
            {
                "variant": ("code", "pyramidkv/pyramidkv_utils.py, PyramidKVCluster.update_kv"),
                "beta": (20.0, "PyramidKVCluster"),
                "window": (8, "run_longbench.py, window_sizes"),
                "kernel": (7, "run_longbench.py, kernel_sizes"),
                "pooling": ("max", "run_longbench.py"),
                "edges": ("zeros", "pyramidkv_utils.py, avg_pool1d counts its padding"),
            },
            f"{SHARED_HEADS} (since July 2026 it can also choose once a KV head.) Its total is not corrected.",
        ),
        "class": Preset(
            "the defaults of the authors' class, with 320 slots",
            {
                "variant": ("code", "pyramidkv/pyramidkv_utils.py, PyramidKVCluster.update_kv"),
                "beta": (20.0, "PyramidKVCluster"),
                "window": (64, "PyramidKVCluster"),
                "kernel": (5, "PyramidKVCluster"),
                "pooling": ("average", "PyramidKVCluster"),
                "edges": ("zeros", "pyramidkv_utils.py, avg_pool1d counts its padding"),
            },
            f"{SHARED_HEADS} Its total is not corrected.",
        ),
    }
    reasons: ClassVar = {
        "variant": "the exact line; the code's whole-number steps keep up to L (L - 1) / 2 slots more than it asks for",
        "window": "the runner's, which made the paper's tables; 64 is the class's default",
        "kernel": "the runner's; 5 is the class's default",
        "pooling": "the runner's; the class's default averages",
        "edges": POOLED_EDGES,
        **GOING_ON,
    }

    variant: Literal["paper", "code"] = Field("paper", description="layer schedule: exact line, or whole-number steps")
    beta: float = Field(20.0, ge=1, description="the last layer gets 1/beta of the average, the window aside")
    window: int = Field(8, ge=1, description="last prompt queries that vote; these tokens always stay")

    def pipeline(self) -> Pipeline:
        """Pooled window attention, linear layer budgets, the window protected, prefill only."""
        prompt_only = Pipeline(
            self.window_attention(),
            Pyramid(self.window, self.beta, self.variant),
            LowestScore(recent=self.window),
            Evict(),
            decode=False,
        )
        return self.going_on(prompt_only)
