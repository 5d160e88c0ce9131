"""AsymKV: merge neighbours, keys weighted by curvature, values by count."""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.decode_buffer import GoesOn
from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.eviction.window_methods import PROMPT_ONLY, RKV_BUFFER
from kvlab.core.methods.scorers.attention.window import WindowAttention
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.log_mass import SPACE_HELP, Space
from kvlab.core.methods.settlers.merging.pair_merge import KeyWeights, PairMerge

MERGED_IN_BLOCKS = (
    "The original reads the text in blocks of 512, merges each before the next, and loses a token of pairs that "
    "touch; here the prompt is merged once, in rounds, and pairs that touch become one run."
)
MERGED_WINDOW = "SnapKV's; the code's block of 512 would fill the budget of a short prompt"
MERGED_SINKS = "four, as elsewhere; the code's 32 would fill a small budget"
MERGED_CLIP = "the paper's: a slot that counts for fewer tokens than it holds is underrated"
MERGED_VALUES = "only used with `clip`; a sum beyond it would overrate values"

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

    keys: Literal["gradient", "equal"] = Field("gradient", description="weights of the keys in a merge")

    paper: ClassVar[str] = "https://arxiv.org/abs/2506.05410"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "keys by the diagonal of the Hessian, values as a sum with their number",
            {
                "keys": ("gradient", "its Hessian's diagonal, from gradients of the loss there"),
                "clip": (0, "counts are not clipped in the paper"),
                "space": ("unrotated", "keys are stored before rotation"),
            },
            beyond=MERGED_IN_BLOCKS,
        ),
        "code": Preset(
            "the authors' code",
            {
                "window": (512, "Asymkv_model_generate.py, input_window: the block's queries"),
                "sinks": (32, "Asymkv_model_generate.py, start_size"),
                "clip": (5, "asymkv/method/asymkv.py, torch.clip"),
                "add_values": (
                    True,
                    (
                        "asymkv/method/asymkv.py, ve; asymkv/method/asymkv_forward/asymkv_llama.py: lengths count in "
                        "the denominator only"
                    ),
                ),
                "late": (True, "asymkv/method/asymkv.py, gamma"),
                "heads": ("shared", "asymkv/method/asymkv.py, weight_i is summed over heads"),
                "space": ("unrotated", "asymkv/method/asymkv_forward/asymkv_llama.py: keys are stored before rotation"),
                "decode": ("budget", "pred.py: the cache is merged again while decoding"),
                "buffer": (512, "Asymkv_model_generate.py, input_window"),
                "keys": ("gradient", "asymkv/method/asymkv.py, hessian_diagnoal"),
            },
            beyond=MERGED_IN_BLOCKS,
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "window": MERGED_WINDOW,
        "sinks": MERGED_SINKS,
        "decode": PROMPT_ONLY,
        "buffer": RKV_BUFFER,
        "clip": MERGED_CLIP,
        "add_values": MERGED_VALUES,
        "late": "the paper has no such factor",
        "heads": "the code's; text KL on mini at 20 % (5 prompts): .081, per head .071",
        "keys": "the paper's weights without a loss: .081 as above, equal ones .101",
    }

    def pipeline(self) -> Pipeline:
        return self.merging(self.keys)
