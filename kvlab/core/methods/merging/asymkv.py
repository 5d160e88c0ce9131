"""AsymKV: merge neighbours, keys weighted by curvature, values by count."""

import math
from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.decode_buffer import GoesOn
from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.window import WindowAttention
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.log_mass import SPACE_HELP, Space
from kvlab.core.methods.settlers.merging.pair_merge import KeyWeights, PairMerge

LATE = "exp(place / (4096 / ln 512))"


class MergesNeighbours(GoesOn):
    """A method that merges adjacent slots, the least attended first."""

    window: int = Field(32, ge=1, description="last prompt queries that vote and weigh keys; these tokens always stay")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    clip: int = Field(0, ge=0, description="most tokens a merged slot counts for in attention; 0: all of them")
    add_values: bool = Field(False, description="add values beyond the clip, as published, instead of averaging them")
    late: bool = Field(False, description=f"later pairs are cheaper: weights are divided by {LATE}")
    heads: Literal["shared", "each"] = Field("shared", description="whether all heads of a layer merge the same pairs")
    space: Space = Field("unrotated", description=SPACE_HELP)

    def merging(self, keys: KeyWeights) -> Pipeline:
        """Window attention, protected sinks and window, merged neighbours with keys weighted by `keys`."""
        late = math.log(512) / 4096 if self.late else 0.0
        settle = PairMerge(keys, self.window, self.clip, self.add_values, late, self.heads, self.space)
        score, select = WindowAttention(self.window, 1), LowestScore(self.sinks, self.window)
        return self.going_on(Pipeline(score, Uniform(), select, settle, decode=False))


@register
class AsymKV(MergesNeighbours):
    """Merges the least attended neighbours into one slot that counts for all its tokens.

    Adjacent keys are similar and their values are not, so merged slots keep their token count (log mass) and keys are
    averaged by weight. The paper uses squared gradients of the loss; no loss is available here, and the weights are
    what these become if the loss's gradient at the output has no preferred direction.
    """

    name: ClassVar[str] = "asymkv"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "AsymKV"
    paper, presets, reasons = published(__file__)

    keys: Literal["gradient", "equal"] = Field("gradient", description="weights of the keys in a merge")

    def pipeline(self) -> Pipeline:
        return self.merging(self.keys)
