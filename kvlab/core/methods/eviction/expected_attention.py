"""ExpectedAttention: keep the slots that future queries, modelled as Gaussian, would attend to."""

from pydantic import Field

from kvlab.core.contract import DecodeCompression, LowestScore, Pipeline, Preset, Uniform, register
from kvlab.core.methods.allocators.adaptive import HeadAdaptive
from kvlab.core.methods.eviction.window_methods import PROMPT_ONLY, RKV_BUFFER
from kvlab.core.methods.scorers.expected_attention import ExpectedAttention as Expected
from kvlab.core.methods.scorers.expected_attention import Weight


@register
class ExpectedAttention(DecodeCompression):
    """Keeps the slots expected to get most attention from future queries, modelled as Gaussian.

    Mean and covariance of each query head's queries before rotation, rotated ahead by the mean rotation, give the
    expected attention in closed form; it is weighted by the value's length. Acts once, after the prompt, unless
    `decode=budget`.
    """

    name = "expected-attention"
    family = "eviction"
    title = "ExpectedAttention"

    n_future: int = Field(512, ge=1, description="positions ahead over which the rotation is averaged")
    sinks: int = Field(4, ge=0, description="first tokens excluded from the Gaussian, which always stay")
    covariance: bool = Field(True, description="use the variance of queries, not only their mean")
    weight: Weight = Field("value", description="weight by the length of the value, of its projection, or not at all")
    epsilon: float = Field(0.0, ge=0, description="added to the attention before weighting by the value")
    adaptive: bool = Field(False, description="heads compete for a layer's budget as in AdaKV")
    floor: float = Field(0.2, ge=0, le=1, description="with `adaptive`: share of the equal budget no head can lose")

    paper = "https://arxiv.org/abs/2510.00636"
    presets = {
        "paper": Preset(
            "the expected contribution to the residual stream",
            {
                "covariance": (True, "the closed form of a Gaussian's expected exponential"),
                "weight": ("output", "the contribution of a slot is its attention times the length of W_o v"),
                "adaptive": (True, "its experiments add AdaKV's budgets by head"),
            },
        ),
        "code": Preset(
            "the class with its defaults",
            {
                "n_future": (512, "kvpress, expected_attention_press.py, n_future_positions"),
                "sinks": (4, "kvpress, expected_attention_press.py, n_sink"),
                "covariance": (True, "kvpress, expected_attention_press.py, use_covariance"),
                "weight": ("value", "kvpress, expected_attention_press.py, use_vnorm: the length of v, not projected"),
                "epsilon": (0.0, "kvpress, expected_attention_press.py, epsilon"),
                "adaptive": (False, "kvpress, expected_attention_press.py: equal heads by default"),
                "decode": (
                    "keep",
                    "kvpress, expected_attention_press.py: the prompt, unless wrapped in decoding_press.py",
                ),
            },
        ),
    }
    reasons = {
        "n_future": "the code's",
        "sinks": "the code's",
        "weight": "the code's: values need not be projected",
        "epsilon": "the code's; .01, as in kvpress' published runs, finds hidden numbers that 0 loses",
        "adaptive": "the code's; heads compete in the paper's experiments",
        "floor": "AdaKV's own",
        "decode": PROMPT_ONLY,
        "buffer": RKV_BUFFER,
    }

    def pipeline(self) -> Pipeline:
        score = Expected(self.n_future, self.sinks, self.covariance, self.weight, self.epsilon)
        allocate = HeadAdaptive(window=1, floor=self.floor) if self.adaptive else Uniform()
        return self.with_decoding(Pipeline(score, allocate, LowestScore(self.sinks), decode=False))
