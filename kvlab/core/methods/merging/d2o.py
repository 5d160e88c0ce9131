"""D2O: layer budgets by attention variance, and cosine merging with a moving threshold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.variance import Variance
from kvlab.core.methods.scorers.attention.accumulated_attention import AccumulatedAttention
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.log_mass import MASS_HELP, SPACE_HELP, Mass, MassRule, Space
from kvlab.core.methods.settlers.merging.cosine_merge import CosineMerge


@register
class D2O(Method):
    """Gives layers with flat attention more slots, and merges victims into similar kept slots.

    Variant `paper` (default) follows the formulas, with a threshold per head. `code` follows the authors' code:
    similarities are averaged over heads although each head evicts different tokens, the mean shrinks keys, and
    variances are scaled within a layer before they are compared between layers. In the code, layers 0, 1 and the last
    are never compressed and not counted: `spare_layers` does that too, and then exceeds the budget. As in the code the
    prompt is compressed at the first pass after it, when every layer's variance is known, so the cache of the whole
    prompt exists until then.
    """

    name: ClassVar[str] = "d2o"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "D2O"

    variant: Literal["paper", "code"] = Field("paper", description="threshold, weights and layer shares")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: float = Field(
        0.5, gt=0, lt=1, description="share of the budget for recent tokens; heavy hitters get the rest"
    )
    smoothing: float = Field(0.5, gt=0, le=1, description="weight of the newest mean similarity in the threshold")
    spare_layers: bool = Field(False, description="variant code: layers 0, 1 and last keep all, beyond the budget")
    mass: MassRule = Field("none", description=MASS_HELP)
    alpha: float = Field(0.6, ge=0, le=1, description="mass `alpha`: its factor")
    space: Space = Field("rotated", description=SPACE_HELP)

    paper: ClassVar[str] = "https://arxiv.org/abs/2406.13035"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "the paper's formulas, at the proportions of its scripts",
            {
                "variant": ("paper", "the formulas of layer sizes, threshold and weights"),
                "recent": (0.5, "README.md: hh_ratio = recent_ratio = .1"),
                "mass": ("none", "the formulas have no such term"),
                "space": ("rotated", "keys are merged as they are cached"),
            },
            beyond="In the original each query head has its own scores and slots.",
        ),
        "code": Preset(
            "the authors' code as their README runs it",
            {
                "variant": ("code", "modeling_llama3_7b_13b_d2o.py, D2O_LayerKVCache"),
                "sinks": (4, "D2O_LayerKVCache: the first 4 scores are infinite"),
                "recent": (0.5, "README.md: hh_ratio = recent_ratio = .1, half of 20 % each"),
                "smoothing": (0.5, "D2O_LayerKVCache, belta"),
                "spare_layers": (True, "LlamaAttention3_D2O.forward: layers 0, 1 and the last keep all"),
                "mass": ("none", "D2O_LayerKVCache"),
                "space": ("rotated", "D2O_LayerKVCache"),
            },
            beyond="It repeats keys per query head, and averages budgets over a batch.",
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "variant": "the code's threshold mixes different tokens of different heads, and its mean shrinks keys",
        "sinks": "the code's; the paper has none",
        "smoothing": "the code's; at 0.5 the threshold is the mean of the old one and the newest similarity",
        "spare_layers": "keeping three full layers exceeds the budget; in models of three layers these are all",
        "alpha": "used by mass `alpha` only, which is not D2O's; the value is ZSMerge's",
    }

    @model_validator(mode="after")
    def _check_shares(self) -> D2O:
        if self.spare_layers and self.variant != "code":
            raise ValueError("only variant 'code' spares layers")
        return self

    def pipeline(self) -> Pipeline:
        return Pipeline(
            AccumulatedAttention(),
            Variance("heads" if self.variant == "code" else "layers", self.spare_layers),
            LowestScore(sinks=self.sinks, recent=self.recent),
            CosineMerge(self.variant, self.smoothing, Mass(self.mass, self.alpha), self.space),
            deferred=True,
        )
