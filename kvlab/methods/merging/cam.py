"""CaM: cache merging of values."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from kvlab.methods.allocators.uniform import Uniform
from kvlab.methods.base import Method, register
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.scorers.attention.accumulated import AccumulatedAttention
from kvlab.methods.selectors.oldest import Oldest
from kvlab.methods.settlers.merging.value_merge import Chance, ValueMerge

Variant = Literal["code", "simulation", "row", "threshold"]
CHANCES: dict[Variant, Chance] = {"code": "mean", "simulation": "max", "row": "row", "threshold": "threshold"}
HALF = "a tenth of the text each for start and recent tokens, rounded up: half of the budget each, at any budget"
EVERY_STEP = (
    "A leaving value is split among the tokens that follow where fewer than `merge` do; the authors divide by `merge`. "
    "Positions are the original ones."
)


@register
class CaM(Method):
    """Keeps sinks and a recent window; the value that falls out of the window is added to the values after it.

    A token is merged with a probability of its attention over that of its rivals, which the paper and each of the
    authors' programs define differently: `variant`. The default `code` is the paper's formula and the streaming
    program: over the mean of the next `merge` tokens'. Values are added, not averaged, so their norm may grow. Keys
    are dropped. What leaves after the prompt is judged by what all of the prompt attended to.
    """

    name: ClassVar[str] = "cam"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "CaM"
    paper: ClassVar[str] = "https://openreview.net/forum?id=LCTmppB165"

    presets: ClassVar = {
        "paper": Preset(
            "CaM's formula: attention over the mean of the tokens that take the value",
            {
                "variant": ("code", "the formula of the merging probability, as the streaming program computes it"),
                "draw": ("bernoulli", "the formula of the merging mask: Bernoulli"),
            },
            EVERY_STEP,
        ),
        "code": Preset(
            "the authors' program for streams",
            {
                "variant": ("code", "generate_task/streaming_llm/kv_cache_cam.py, slicev"),
                "sinks": (4, "kv_cache_cam.py, start_size of the class; the script's own default is 1"),
                "merge": (16, "kv_cache_cam.py, merge_num"),
                "draw": ("bernoulli", "kv_cache_cam.py"),
            },
            f"{EVERY_STEP} Theirs are counted inside the cache.",
        ),
        "simulation": Preset(
            "the authors' simulation for multiple-choice benchmarks",
            {
                "variant": ("simulation", "cam_hf/utils_lm_eval/modify_llama_cam.py"),
                "sinks": (0.5, f"run_lm_eval_harness.py, start_ratio and recent_ratio .1: {HALF}"),
                "draw": ("bernoulli", "modify_llama_cam.py"),
            },
            "Theirs reads one text with masks, token by token: values merged later are seen by earlier queries too, "
            "and a token is judged by what came before it leaves. Here the prompt is judged once, after all of it was "
            "read; while decoding the probabilities are theirs.",
        ),
        "generation": Preset(
            "the authors' program for generation with Llama",
            {
                "variant": ("row", "cam_hf/utils_hh/modify_llama_cam.py: the newest row over the recent window's mean"),
                "sinks": (0.5, f"run_helm.py, start_ratio and recent_ratio .1: {HALF}"),
                "merge": (32, "modify_llama_cam.py, merge_budget"),
                "draw": ("bernoulli", "modify_llama_cam.py"),
            },
            f"{EVERY_STEP} Theirs merges a token one step before it is masked, and nothing of the prompt.",
        ),
        "generation-neox": Preset(
            "the authors' program for generation with GPT-NeoX",
            {
                "variant": ("threshold", "cam_hf/utils_hh/modify_gptneox_cam.py, local_cam_mask: merged if above 1"),
                "sinks": (0.5, f"run_helm.py, start_ratio and recent_ratio .1: {HALF}"),
                "merge": (32, "modify_gptneox_cam.py, merge_budget"),
            },
            f"{EVERY_STEP} Theirs also puts a weighted sum of the prompt's 16 heaviest old values into the first slot "
            "after the start tokens, which fades by 1 % a step; the prompt's other tokens are masked.",
        ),
    }
    reasons: ClassVar = {
        "variant": "the only one of the authors' programs that drops what leaves, and it follows the paper's formula",
        "sinks": "the paper leaves it open; 4 is the streaming class's, and StreamingLLM's",
        "merge": "the paper leaves it open; 16 is the streaming program's",
    }

    variant: Variant = Field(
        "code",
        description="a token's rivals: the next tokens' mean (code), the largest that stays (simulation), the window's "
        "mean for the newest query alone (row), or merging above the mean (threshold)",
    )
    sinks: int | float = Field(
        4, ge=0, description="first tokens that always stay; below 1 a share of the budget, rounded up"
    )
    merge: int = Field(16, ge=1, description="tokens a leaving value is spread over; in `simulation`, the window")
    draw: Literal["bernoulli", "expected"] = Field(
        "bernoulli", description="merge with probability p (seeded), or always with weight p"
    )

    @field_validator("sinks")
    @classmethod
    def _tokens_or_share(cls, sinks: int | float) -> int | float:
        if isinstance(sinks, float) and sinks >= 1:
            raise ValueError("a number of tokens must be whole")
        return sinks or 0

    def pipeline(self) -> Pipeline:
        """Accumulated attention, sinks and window, value merging."""
        reach = None if self.variant == "simulation" else self.merge
        return Pipeline(
            AccumulatedAttention(),
            Uniform(),
            Oldest(self.sinks),
            ValueMerge(CHANCES[self.variant], reach, self.draw),
        )
