"""CriticalKV: evict what changes the output least, by attention and projected value."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.adaptive import HeadAdaptive
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.eviction.window_methods import (
    POOLED_EDGES,
    PROMPT_ONLY,
    RKV_BUFFER,
    SHARED_HEADS,
    WindowEvicting,
)
from kvlab.core.methods.selectors.critical import Critical
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class CriticalKV(WindowEvicting):
    """Half of the budget by SnapKV's score, the rest by the score times ||W_o v||, which bounds the output's change.

    The selection works with any score: `--score expected-attention --select criticalkv`. `adaptive` splits a layer's
    budget over its heads by the plain score, as in AdaKV.
    """

    name: ClassVar[str] = "criticalkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "CriticalKV"

    first: float = Field(0.5, ge=0, le=1, description="share of the budget that goes by the score only")
    epsilon: float = Field(
        1e-4, ge=0, description="added to a score, mean over the window, before multiplying by the value's norm"
    )
    adaptive: bool = Field(False, description="heads compete for a layer's budget as in AdaKV")
    floor: float = Field(0.2, ge=0, le=1, description="with `adaptive`: share of the equal budget no head can lose")

    paper: ClassVar[str] = "https://arxiv.org/abs/2502.03805"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "the two stages with SnapKV's score; the authors' code is in kvpress",
            {
                "first": (0.5, "kvpress, criticalkv_press.py, first_stage_ratio"),
                "epsilon": (0.0001, "kvpress, criticalkv_press.py, epsilon"),
            },
            beyond=SHARED_HEADS,
        ),
        "ada": Preset(
            "CriticalAdaKV: heads compete first",
            {
                "first": (0.5, "kvpress, criticalkv_press.py, CriticalAdaKVPress, first_stage_ratio"),
                "epsilon": (0.0001, "kvpress, criticalkv_press.py, CriticalAdaKVPress, epsilon"),
                "adaptive": (True, "kvpress, criticalkv_press.py, CriticalAdaKVPress"),
                "floor": (0.2, "kvpress, criticalkv_press.py, CriticalAdaKVPress, alpha_safeguard"),
            },
            beyond=(
                f"{SHARED_HEADS}"
                " The original guarantees the floor; here it is mixed into the counts, as in AdaKV's code."
            ),
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "adaptive": "the plain form, comparable with SnapKV; see also `preset=ada`",
        "floor": "AdaKV's own",
        "window": "SnapKV's, whose score it takes here",
        "kernel": "SnapKV's",
        "pooling": "SnapKV's",
        "edges": POOLED_EDGES,
        "decode": PROMPT_ONLY,
        "buffer": RKV_BUFFER,
    }

    def pipeline(self) -> Pipeline:
        allocate = HeadAdaptive(window=self.window, floor=self.floor) if self.adaptive else Uniform()
        # SnapKV's score is a sum over the window; the published epsilon belongs to the mean.
        select = Critical(LowestScore(recent=self.window), self.first, self.epsilon * self.window)
        return self.going_on(Pipeline(self.window_attention(), allocate, select, Evict(), decode=False))
