"""PyramidKV: SnapKV's scores with budgets that fall with depth."""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from kvlab.core.contract import Pipeline, Preset, register
from kvlab.core.methods.allocators.pyramid import Pyramid
from kvlab.core.methods.eviction import window_methods


@register
class PyramidKV(window_methods.WindowEvicting):
    """Gives early layers, where attention is spread, more slots than late ones, where it is concentrated.

    The default `paper` is a linear schedule with an exact total. `code` is the authors' schedule with integer steps,
    whose total (too large by up to L (L - 1) / 2 slots as published) is corrected. Acts once, after the prompt:
    generated tokens are kept in addition to the budget.
    """

    name = "pyramidkv"
    family = "eviction"
    title = "PyramidKV"

    variant: Literal["paper", "code"] = Field("paper", description="layer schedule: exact line, or integer steps")
    beta: float = Field(20.0, ge=1, description="the last layer gets 1/beta of the average, besides the window")
    window: int = Field(8, ge=1, description="last prompt queries that vote; these tokens always stay")

    paper = "https://arxiv.org/abs/2406.02069"
    presets = {
        "paper": Preset(
            "the paper's LongBench tables",
            {
                "variant": ("paper", "the arithmetic sequence over layers"),
                "beta": (20.0, "run_longbench.py's cluster, which made the tables: beta = 20"),
                "window": (8, "run_longbench.py, window_sizes"),
                "kernel": (7, "run_longbench.py, kernel_sizes"),
                "pooling": ("max", "run_longbench.py"),
            },
            beyond=window_methods.SHARED_HEADS,
        ),
        "code": Preset(
            "the authors' class with their runner's settings",
            {
                "variant": ("code", "pyramidkv/pyramidkv_utils.py, PyramidKVCluster.update_kv"),
                "beta": (20.0, "PyramidKVCluster"),
                "window": (8, "run_longbench.py, window_sizes"),
                "kernel": (7, "run_longbench.py, kernel_sizes"),
                "pooling": ("max", "run_longbench.py"),
                "edges": ("zeros", "pyramidkv_utils.py, avg_pool1d includes its padding"),
            },
            beyond=(
                f"{window_methods.SHARED_HEADS} (Since July 2026 it can also choose per KV head.) "
                "Its total is not corrected."
            ),
        ),
        "class": Preset(
            "the defaults of the authors' class, with 320 slots",
            {
                "variant": ("code", "pyramidkv/pyramidkv_utils.py, PyramidKVCluster.update_kv"),
                "beta": (20.0, "PyramidKVCluster"),
                "window": (64, "PyramidKVCluster"),
                "kernel": (5, "PyramidKVCluster"),
                "pooling": ("average", "PyramidKVCluster"),
                "edges": ("zeros", "pyramidkv_utils.py, avg_pool1d includes its padding"),
            },
            beyond=(f"{window_methods.SHARED_HEADS} Its total is not corrected."),
        ),
    }
    reasons = {
        "variant": "the exact line; the code's integer steps keep up to L (L - 1) / 2 slots too many",
        "window": "the runner's, which made the paper's tables; 64 is the class's default",
        "kernel": "the runner's; 5 is the class's default",
        "pooling": "the runner's; the class's default averages",
        **window_methods.WINDOW_REASONS,
        "decode": window_methods.PROMPT_ONLY,
        "buffer": window_methods.RKV_BUFFER,
    }

    def pipeline(self) -> Pipeline:
        return replace(super().pipeline(), allocate=Pyramid(self.window, self.beta, self.variant))
