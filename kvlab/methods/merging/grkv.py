"""GRKV: eviction, and survivors refitted by ridge regression."""

from typing import ClassVar

from pydantic import Field

from kvlab.methods.allocators.uniform import Uniform
from kvlab.methods.base import register
from kvlab.methods.eviction.window_scored import POOLED_EDGES, WindowEvicting
from kvlab.methods.going_on import GOING_ON
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.refitting.global_ridge import GlobalRidge


@register
class GRKV(WindowEvicting):
    """Drops by SnapKV's score, then moves the survivors' keys and values so that the window gets back what it had.

    Its settling works with any score and selection: `--score snapkv --select criticalkv --settle grkv`. No code was
    released; the step of the keys is kvlab's reading of the paper.
    """

    name: ClassVar[str] = "grkv"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "GRKV"
    paper: ClassVar[str] = "https://arxiv.org/abs/2605.31105"

    presets: ClassVar = {
        "paper": Preset(
            "the paper's settings, as its readers give them",
            {
                "rows": (32, "surrogate queries m; 48 and 64 were worse in its ablation"),
                "ridge": (0.01, "lambda_k = lambda_v"),
                "untouched": (0.1, "beta, the share of survivors left as they are"),
                "refit_keys": (True, "keys and values in turn, once"),
            },
        )
    }
    reasons: ClassVar = {
        "refit_keys": "text KL on mini at 20 % (5 prompts): .036 with keys, .033 without, SnapKV .036",
        "window": "SnapKV's, whose score it takes here",
        "kernel": "SnapKV's",
        "pooling": "SnapKV's",
        "edges": POOLED_EDGES,
        **GOING_ON,
    }

    rows: int = Field(32, ge=1, description="last queries whose outputs are to be given back")
    ridge: float = Field(0.01, ge=1e-6, description="how much a change of values and keys costs")
    untouched: float = Field(0.1, ge=0, le=1, description="share of the survivors, best scores first, left as they are")
    refit_keys: bool = Field(False, description="keys move too, before values do")

    def pipeline(self) -> Pipeline:
        """Pooled window attention, the window protected, a ridge over what stays."""
        settle = GlobalRidge(self.rows, self.ridge, self.untouched, self.refit_keys)
        select = LowestScore(recent=self.window)
        return self.going_on(Pipeline(self.window_attention(), Uniform(), select, settle, decode=False))
