"""KVMerger: merge consecutive similar keys around the most attended one."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.accumulated_attention import AccumulatedAttention
from kvlab.core.methods.scorers.wrappers.wrapper import PromptOnly
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.log_mass import MASS_HELP, SPACE_HELP, Mass, MassRule, Space
from kvlab.core.methods.settlers.merging.gaussian_sets import GaussianSets, Pivot, SigmaMode, Weights


@register
class KVMerger(Method):
    """Merges runs of consecutive tokens with similar keys; recent and most attended tokens are kept.

    In the paper the budget is what the threshold (0.75) happens to give; here methods are compared at equal budgets, so
    each head takes the highest threshold that meets its budget, down to the paper's 0.75 (`loosest`), and evicts what
    still exceeds it, lowest sets first: the paper evicts nothing. A fixed `theta` is used as given. Aggregated scores
    are column sums of the attention (the printed row sums are all 1). A pair has one distance and so one pair of
    weights: 0.731 and 0.269 with `mean_l2`, 0.622 and 0.378 with `mean`.
    """

    name: ClassVar[str] = "kvmerger"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "KVMerger"
    paper, presets, reasons = published(__file__)

    theta: float | None = Field(
        None, ge=-1, le=1, description="cosine with its anchor above which a token joins a set; none: solved per head"
    )
    loosest: float = Field(0.75, ge=-1, le=1, description="lowest threshold that the search may reach")
    recent: float = Field(0.34, gt=0, lt=1, description="share of the budget for the most recent tokens")
    heavy: float = Field(0.24, ge=0, lt=1, description="share of the budget for the most attended tokens")
    sigma_mode: SigmaMode | float = Field(
        "mean_l2",
        description="the Gaussian's width: mean distance (section 6.3), that over sqrt 2, as printed, or a number",
    )
    pivot: Pivot = Field("attention", description="a set's pivot: its most attended token, or a random one (Table 3)")
    weights: Weights = Field("gaussian", description="weights in a set: by distance to the pivot, or equal (Table 4)")
    longest_set: int = Field(
        64, ge=2, le=1024, description="most tokens in one set; bounds the band of similarities computed"
    )
    mass: MassRule = Field("none", description=MASS_HELP)
    alpha: float = Field(0.6, ge=0, le=1, description="mass `alpha`: its factor")
    space: Space = Field("rotated", description=SPACE_HELP)
    decode: Literal["keep", "evict"] = Field(
        "keep", description="keep generated tokens in addition to the budget, or evict the lowest scores for them"
    )

    @model_validator(mode="after")
    def _check_values(self) -> KVMerger:
        if self.recent + self.heavy >= 1:
            raise ValueError("recent and heavy must leave room for merged slots: use a sum below 1")
        if not isinstance(self.sigma_mode, str) and not self.sigma_mode > 0:
            raise ValueError("a numeric sigma_mode must be above 0")
        return self

    def pipeline(self) -> Pipeline:
        score = AccumulatedAttention()
        return Pipeline(
            PromptOnly(score) if self.decode == "keep" else score,
            Uniform(),
            LowestScore(recent=self.recent),
            GaussianSets(
                self.theta,
                self.loosest,
                self.heavy,
                self.sigma_mode,
                self.longest_set,
                Mass(self.mass, self.alpha),
                self.space,
                self.pivot,
                self.weights,
            ),
            decode=self.decode == "evict",
        )
