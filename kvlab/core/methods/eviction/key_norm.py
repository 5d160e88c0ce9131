"""Key norm: keep tokens with short keys."""

from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.first_layers import FirstLayers
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.key_value.key_only import ShortKeys
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class KeyNorm(Method):
    """Keeps the tokens with the shortest keys. Uses no queries.

    The authors found that short keys get much attention later, in most layers but not in the first: `skip` keeps the
    first layers whole, out of the same budget. In a head whose keys have equal lengths the newest tokens are kept.
    """

    name: ClassVar[str] = "key-norm"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "Key norm"
    paper, presets, reasons = published(__file__)

    sinks: int = Field(0, ge=0, description="first tokens that always stay")
    recent: int = Field(1, ge=1, description="last tokens that always stay")
    skip: int = Field(0, ge=0, description="first layers that keep the whole prompt, if the budget allows it")

    def pipeline(self) -> Pipeline:
        layers = FirstLayers(self.skip) if self.skip else Uniform()
        return Pipeline(ShortKeys(), layers, LowestScore(self.sinks, self.recent), Evict())
