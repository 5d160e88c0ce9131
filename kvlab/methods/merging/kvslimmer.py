"""KVSlimmer: neighbours merge, keys by a closed form of the loss's second derivative that needs no backward pass."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.methods.base import register
from kvlab.methods.merging.asymkv import BLOCKS, CODES, MERGING_REASONS, MergesNeighbours
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset

CACHE = "kvslimmer/cache.py"


@register
class KVSlimmer(MergesNeighbours):
    """AsymKV with keys weighed by h_i - h_ij, from attention, values and outputs alone.

    h_i = a_i (1 - 2 a_i) |v_i - o| and h_ij = a_i a_j |v_i + v_j - 2 o|, with attention a and output o. The form fails
    where a slot has half of the attention or more; such a merge weighs its parts equally, and is counted.
    """

    name: ClassVar[str] = "kvslimmer"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "KVSlimmer"
    paper: ClassVar[str] = "https://arxiv.org/abs/2603.00907"

    presets: ClassVar = {
        "paper": Preset(
            "the closed form as printed",
            {
                "variant": ("paper", "L2 lengths, and the joint term"),
                "clip": (0, "counts are not clipped in the paper"),
                "space": ("unrotated", "keys are stored before rotation"),
            },
            BLOCKS,
        ),
        "code": Preset(
            "what runs: L1 lengths, the joint term from both single ones",
            CODES | {"variant": ("code", f"{CACHE} and kvslimmer/merge.py; smoothed over blocks there")},
            BLOCKS,
        ),
    }
    reasons: ClassVar = {
        **MERGING_REASONS,
        "clip": "the paper's: a slot that counts for fewer tokens than it holds is underrated",
        "add_values": "only felt with `clip`; a sum beyond it would overrate values",
        "late": "the paper has no such factor",
        "heads": "the code's",
        "variant": "the printed form; the code runs another (text KL on mini at 20 %, 5 prompts: .083 for both)",
    }

    variant: Literal["paper", "code"] = Field("paper", description="the closed form as printed, or what the code runs")

    def pipeline(self) -> Pipeline:
        """Neighbours, keys by the closed form."""
        return self.merging("hessian" if self.variant == "paper" else "hessian-code")
