"""AsymKV: neighbours merge, keys by how much they bend the loss, values by how many they are."""

import math
from typing import ClassVar, Literal

from pydantic import Field

from kvlab.methods.allocators.uniform import Uniform
from kvlab.methods.base import register
from kvlab.methods.going_on import GOING_ON, GoesOn
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.scorers.attention.window import WindowAttention
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.mass import SPACE_HELP, Space
from kvlab.methods.settlers.merging.pair_merge import KeyWeights, PairMerge

CODE, FORWARD = "asymkv/method/asymkv.py", "asymkv/method/asymkv_forward/asymkv_llama.py"
LATE = "exp(place / (4096 / ln 512))"
BLOCKS = (
    "There the text comes in blocks of 512, each merged before the next is read, and pairs that touch lose a token; "
    "here the prompt is merged once, in rounds, and pairs that touch become one run."
)


class MergesNeighbours(GoesOn):
    """A method whose slots merge with their neighbours in the text, the least attended first."""

    window: int = Field(32, ge=1, description="last prompt queries that vote and weigh; these tokens always stay")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    clip: int = Field(0, ge=0, description="most tokens a merged slot counts for in attention; 0: all of them")
    add_values: bool = Field(False, description="beyond the clip values add up, as published, where they else average")
    late: bool = Field(False, description=f"later pairs are cheaper: weights are divided by {LATE}")
    heads: Literal["shared", "each"] = Field("shared", description="whether all heads of a layer merge the same pairs")
    space: Space = Field("unrotated", description=SPACE_HELP)

    def merging(self, keys: KeyWeights) -> Pipeline:
        """Window attention, sinks and window protected, neighbours merged, keys weighed by `keys`."""
        late = math.log(512) / 4096 if self.late else 0.0
        settle = PairMerge(keys, self.window, self.clip, self.add_values, late, self.heads, self.space)
        score, select = WindowAttention(self.window, 1), LowestScore(self.sinks, self.window)
        return self.going_on(Pipeline(score, Uniform(), select, settle, decode=False))


MERGING_REASONS = {
    "window": "SnapKV's; the code's block of 512 would fill the budget of a short prompt",
    "sinks": "four as elsewhere; the code's 32 would fill a small budget",
    **GOING_ON,
}
CODES = {
    "window": (512, "Asymkv_model_generate.py, input_window: the block's queries"),
    "sinks": (32, "Asymkv_model_generate.py, start_size"),
    "clip": (5, f"{CODE}, torch.clip"),
    "add_values": (True, f"{CODE}, ve; {FORWARD}: lengths count in the denominator only"),
    "late": (True, f"{CODE}, gamma"),
    "heads": ("shared", f"{CODE}, weight_i is summed over heads"),
    "space": ("unrotated", f"{FORWARD}: keys are stored before rotation"),
    "decode": ("budget", "pred.py: the cache is merged again while decoding"),
    "buffer": (512, "Asymkv_model_generate.py, input_window"),
}


@register
class AsymKV(MergesNeighbours):
    """Merges the least attended neighbours into one slot that counts for all its tokens.

    Neighbours' keys are alike and their values are not, so values keep their number (log mass) and keys are averaged
    with care. The paper weighs keys by squared gradients of the loss; here no loss is at hand, and the weights are what
    these are if the loss's gradient at the output has no direction.
    """

    name: ClassVar[str] = "asymkv"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "AsymKV"
    paper: ClassVar[str] = "https://arxiv.org/abs/2506.05410"

    presets: ClassVar = {
        "paper": Preset(
            "keys by the diagonal of the Hessian, values as a sum with their number",
            {
                "keys": ("gradient", "its Hessian's diagonal, from gradients of the loss there"),
                "clip": (0, "counts are not clipped in the paper"),
                "space": ("unrotated", "keys are stored before rotation"),
            },
            BLOCKS,
        ),
        "code": Preset("the authors' code", CODES | {"keys": ("gradient", f"{CODE}, hessian_diagnoal")}, BLOCKS),
    }
    reasons: ClassVar = {
        **MERGING_REASONS,
        "clip": "the paper's: a slot that counts for fewer tokens than it holds is underrated",
        "add_values": "only felt with `clip`; a sum beyond it would overrate values",
        "late": "the paper has no such factor",
        "heads": "the code's; text KL on mini at 20 % (5 prompts): .081, each head by itself .071",
        "keys": "the paper's weights as far as no loss is needed: .081 there, equal ones .101",
    }

    keys: Literal["gradient", "equal"] = Field("gradient", description="how a merged key weighs its parts")

    def pipeline(self) -> Pipeline:
        """Neighbours, keys by curvature."""
        return self.merging(self.keys)
