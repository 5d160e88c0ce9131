"""KVSlimmer: merge neighbours, keys weighted by a closed-form second derivative without a backward pass."""

from typing import Literal

from pydantic import Field

from kvlab.core.contract import Pipeline, Preset, register
from kvlab.core.methods.eviction.window_methods import PROMPT_ONLY, RKV_BUFFER
from kvlab.core.methods.merging import asymkv


@register
class KVSlimmer(asymkv.MergesNeighbours):
    """AsymKV with keys weighted by h_i - h_ij, from attention, values and outputs only.

    h_i = a_i (1 - 2 a_i) |v_i - o| and h_ij = a_i a_j |v_i + v_j - 2 o|, with attention a and output o. The form fails
    if a slot has at least half of the attention; such a merge uses equal weights and is counted.
    """

    name = "kvslimmer"
    family = "merging"
    title = "KVSlimmer"

    variant: Literal["paper", "code"] = Field("paper", description="the closed form as printed, or as in the code")

    paper = "https://arxiv.org/abs/2603.00907"
    presets = {
        "paper": Preset(
            "the closed form as printed",
            {
                "variant": ("paper", "L2 lengths, and the joint term"),
                "clip": (0, "counts are not clipped in the paper"),
                "space": ("unrotated", "keys are stored before rotation"),
            },
            beyond=asymkv.MERGED_IN_BLOCKS,
        ),
        "code": Preset(
            "the code: L1 lengths, the joint term from both single ones",
            {
                **asymkv.SETTINGS_OF_BOTH_CODES,
                "variant": ("code", "kvslimmer/cache.py and kvslimmer/merge.py, smoothed over blocks"),
            },
            beyond=asymkv.MERGED_IN_BLOCKS,
        ),
    }
    reasons = {
        "window": asymkv.MERGED_WINDOW,
        "sinks": asymkv.MERGED_SINKS,
        "decode": PROMPT_ONLY,
        "buffer": RKV_BUFFER,
        "clip": asymkv.MERGED_CLIP,
        "add_values": asymkv.MERGED_VALUES,
        "late": "the paper has no such factor",
        "heads": "the code's",
        "variant": "the printed form; the code differs (text KL on mini at 20 %, 5 prompts: .083 for both)",
    }

    def pipeline(self) -> Pipeline:
        return self.merging("hessian" if self.variant == "paper" else "hessian-code")
