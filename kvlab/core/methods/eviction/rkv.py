"""R-KV: while generating, keep tokens with high attention and low redundancy."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.decode_buffer import GoesOn
from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.eviction.window_methods import Odd
from kvlab.core.methods.scorers.key_value.redundancy import Redundancy
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class RKV(GoesOn):
    """Decides whenever `buffer` tokens were generated, by attention of the last queries minus redundancy of keys.

    The prompt is compressed by the same score. `balance=1` ignores redundancy, which is the authors' baseline of SnapKV
    while decoding.
    """

    name: ClassVar[str] = "rkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "R-KV"

    window: int = Field(8, ge=1, description="last queries that vote; these tokens always stay")
    kernel: Odd = Field(7, ge=1, le=1025, description="width of the maximum over neighbours, odd")
    balance: float = Field(0.1, ge=0, le=1, description="weight of attention; the rest is the weight of redundancy")
    threshold: float = Field(0.5, ge=-1, le=1, description="cosine above which a key is redundant with another")
    excused: int = Field(1, ge=0, description="number of last similar keys that a key does not count as redundant")
    decode: Literal["keep", "budget"] = Field("budget", description="keep generated tokens, or let them compete")

    paper: ClassVar[str] = "https://arxiv.org/abs/2505.24133"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "the values of its experiments",
            {
                "window": (8, "R-KV, README, default hyper-parameters"),
                "balance": (0.1, "R-KV, README, default hyper-parameters"),
                "decode": ("budget", "decoding-time compression"),
                "buffer": (128, "R-KV, README, default hyper-parameters"),
            },
            beyond=(
                "The paper does not give the number of recent similar tokens that are excused. A softmax over mean "
                "cosines is nearly flat, about 1/S, so `balance` weighs two numbers of that size."
            ),
        ),
        "code": Preset(
            "the authors' class with its runner's settings",
            {
                "window": (8, "rkv/compression/r1_kv.py, window_size"),
                "kernel": (7, "rkv/compression/r1_kv.py, kernel_size"),
                "balance": (0.07, "rkv/compression/r1_kv.py, mix_lambda"),
                "threshold": (0.5, "rkv/utils.py, cal_similarity"),
                "excused": (1, "rkv/utils.py, cal_similarity, retain_direction last"),
                "decode": ("budget", "rkv/modeling.py"),
                "buffer": (128, "run_math.py, divide_length"),
            },
            beyond=(
                "In the code a key without a similar one excuses the first slot, and later ones are ordered by score, "
                "here by position. A softmax over mean cosines is nearly flat, about 1/S, so `balance` weighs two "
                "numbers of that size."
            ),
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "kernel": "the code's",
        "balance": "the paper's; its code has .07",
        "threshold": "the code's",
        "excused": "the code's: the last similar one",
    }

    def pipeline(self) -> Pipeline:
        score = Redundancy(self.window, self.kernel, self.balance, self.threshold, self.excused)
        return self.going_on(Pipeline(score, Uniform(), LowestScore(recent=self.window), Evict(), decode=False))
