"""KVSlimmer: merge neighbours, keys weighted by a closed-form second derivative without a backward pass."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.merging.asymkv import MergesNeighbours


@register
class KVSlimmer(MergesNeighbours):
    """AsymKV with keys weighted by h_i - h_ij, from attention, values and outputs only.

    h_i = a_i (1 - 2 a_i) |v_i - o| and h_ij = a_i a_j |v_i + v_j - 2 o|, with attention a and output o. The form fails
    if a slot has at least half of the attention; such a merge uses equal weights and is counted.
    """

    name: ClassVar[str] = "kvslimmer"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "KVSlimmer"
    paper, presets, reasons = published(__file__)

    variant: Literal["paper", "code"] = Field("paper", description="the closed form as printed, or as in the code")

    def pipeline(self) -> Pipeline:
        return self.merging("hessian" if self.variant == "paper" else "hessian-code")
