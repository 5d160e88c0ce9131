"""CapKV: keep the tokens whose values add most to what attention can still say."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.lookahead.capacity import Capacity
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class CapKV(Method):
    """Keeps the tokens that contribute most to the log-determinant of the values, weighted by the mean query's cosine.

    A value in a direction that many others span adds little, so redundant tokens go. Follows kvpress (cap_press.py):
    keys and mean query are of unit length, and the mean query is rotated ahead as in ExpectedAttention; the paper has
    plain dot products. Acts once, after the prompt.
    """

    name: ClassVar[str] = "cap"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "CapKV"

    tau: float = Field(5.0, ge=0, description="sharpness of the weights exp(tau cosine)")
    n_future: int = Field(512, ge=1, description="positions ahead over which the rotation is averaged")
    sinks: int = Field(4, ge=0, description="first tokens excluded from the mean query, which always stay")

    paper: ClassVar[str] = "https://arxiv.org/abs/2604.25975"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "the class of kvpress with its defaults",
            {
                "tau": (5.0, "kvpress, cap_press.py, tau"),
                "n_future": (512, "kvpress, cap_press.py, n_future_positions"),
                "sinks": (4, "kvpress, cap_press.py, n_sink"),
            },
            beyond="The paper's dot products are not normalized. kvpress adds 1e-6 to the weights inside the matrix.",
        ),
    }

    def pipeline(self) -> Pipeline:
        score = Capacity(self.n_future, self.sinks, tau=self.tau)
        return Pipeline(score, Uniform(), LowestScore(self.sinks), Evict(), decode=False)
