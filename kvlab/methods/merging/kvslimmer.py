"""KVSlimmer: neighbours merge, keys by a closed form of the loss's second derivative that needs no backward pass."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.methods.core.method import register
from kvlab.methods.core.pipeline import Pipeline
from kvlab.methods.core.published_settings import published
from kvlab.methods.merging.asymkv import MergesNeighbours


@register
class KVSlimmer(MergesNeighbours):
    """AsymKV with keys weighed by h_i - h_ij, from attention, values and outputs alone.

    h_i = a_i (1 - 2 a_i) |v_i - o| and h_ij = a_i a_j |v_i + v_j - 2 o|, with attention a and output o. The form fails
    where a slot has half of the attention or more; such a merge weighs its parts equally, and is counted.
    """

    name: ClassVar[str] = "kvslimmer"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "KVSlimmer"
    paper, presets, reasons = published(__file__)

    variant: Literal["paper", "code"] = Field("paper", description="the closed form as printed, or what the code runs")

    def pipeline(self) -> Pipeline:
        """Neighbours, keys by the closed form."""
        return self.merging("hessian" if self.variant == "paper" else "hessian-code")
