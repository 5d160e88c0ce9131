"""CaM: cache merging of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.accumulated_attention import AccumulatedAttention
from kvlab.core.methods.selectors.fifo import Oldest
from kvlab.core.methods.settlers.merging.value_merge import Chance, ValueMerge

Variant = Literal["code", "simulation", "row", "threshold"]
CHANCES: dict[Variant, Chance] = {"code": "mean", "simulation": "max", "row": "row", "threshold": "threshold"}


@register
class CaM(Method):
    """Keeps sinks and a recent window; a value that leaves the window is added to the values after it.

    A token is merged with probability of its attention over that of its rivals, which the paper and the authors'
    programs define differently: see `variant`. The default `code` is the paper's formula and the streaming program:
    over the mean of the next `merge` tokens. Values are added, not averaged, so their norm may grow. Keys are dropped.
    Victims after the prompt are judged by the attention of the whole prompt.
    """

    name: ClassVar[str] = "cam"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "CaM"

    variant: Variant = Field(
        "code",
        description="a token's rivals: the next tokens' mean (code), the largest kept token (simulation), the window's "
        "mean for the newest query only (row), or merging above the mean (threshold)",
    )
    sinks: int | float = Field(
        4, ge=0, description="first tokens that always stay; below 1: a share of the budget, rounded up"
    )
    merge: int = Field(16, ge=1, description="tokens a value is spread over; in `simulation`, the window")
    draw: Literal["bernoulli", "expected"] = Field(
        "bernoulli", description="merge with probability p (seeded), or always with weight p"
    )

    paper: ClassVar[str] = "https://openreview.net/forum?id=LCTmppB165"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "CaM's formula: attention over the mean of the tokens that take the value",
            {
                "variant": ("code", "the formula of the merging probability, as the streaming program computes it"),
                "draw": ("bernoulli", "the formula of the merging mask: Bernoulli"),
            },
            beyond=(
                "If fewer than `merge` tokens follow a victim, they share its value; the authors divide by `merge`. "
                "Positions are the original ones."
            ),
        ),
        "code": Preset(
            "the authors' streaming program",
            {
                "variant": ("code", "generate_task/streaming_llm/kv_cache_cam.py, slicev"),
                "sinks": (4, "kv_cache_cam.py, start_size of the class; the script's own default is 1"),
                "merge": (16, "kv_cache_cam.py, merge_num"),
                "draw": ("bernoulli", "kv_cache_cam.py"),
            },
            beyond=(
                "If fewer than `merge` tokens follow a victim, they share its value; the authors divide by `merge`. "
                "Positions are the original ones. The authors count them inside the cache."
            ),
        ),
        "simulation": Preset(
            "the authors' simulation for multiple-choice benchmarks",
            {
                "variant": ("simulation", "cam_hf/utils_lm_eval/modify_llama_cam.py"),
                "sinks": (
                    0.5,
                    (
                        "run_lm_eval_harness.py, start_ratio and recent_ratio .1: a tenth of the text each for start "
                        "and recent tokens, rounded up: half of the budget each, at any budget"
                    ),
                ),
                "draw": ("bernoulli", "modify_llama_cam.py"),
            },
            beyond=(
                "The simulation reads one text with masks, token by token: earlier queries also see values merged "
                "later, and a token is judged by the queries before it leaves. Here the prompt is judged once, after "
                "it was read; while decoding the probabilities are the same."
            ),
        ),
        "generation": Preset(
            "the authors' program for generation with Llama",
            {
                "variant": ("row", "cam_hf/utils_hh/modify_llama_cam.py: the newest row over the recent window's mean"),
                "sinks": (
                    0.5,
                    (
                        "run_helm.py, start_ratio and recent_ratio .1: a tenth of the text each for start and recent "
                        "tokens, rounded up: half of the budget each, at any budget"
                    ),
                ),
                "merge": (32, "modify_llama_cam.py, merge_budget"),
                "draw": ("bernoulli", "modify_llama_cam.py"),
            },
            beyond=(
                "If fewer than `merge` tokens follow a victim, they share its value; the authors divide by `merge`. "
                "Positions are the original ones. The original merges a token one step before it is masked, and "
                "nothing of the prompt."
            ),
        ),
        "generation-neox": Preset(
            "the authors' program for generation with GPT-NeoX",
            {
                "variant": ("threshold", "cam_hf/utils_hh/modify_gptneox_cam.py, local_cam_mask: merged if above 1"),
                "sinks": (
                    0.5,
                    (
                        "run_helm.py, start_ratio and recent_ratio .1: a tenth of the text each for start and recent "
                        "tokens, rounded up: half of the budget each, at any budget"
                    ),
                ),
                "merge": (32, "modify_gptneox_cam.py, merge_budget"),
            },
            beyond=(
                "If fewer than `merge` tokens follow a victim, they share its value; the authors divide by `merge`. "
                "Positions are the original ones. The original also puts a weighted sum of the prompt's 16 heaviest "
                "old values into the first slot after the start tokens, which fades by 1 % per step; the prompt's "
                "other tokens are masked."
            ),
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "variant": "the only one of the authors' programs that frees memory, and it follows the paper's formula",
        "sinks": "the paper leaves it open; 4 is the streaming class's, and StreamingLLM's",
        "merge": "the paper leaves it open; 16 is the streaming program's",
    }

    @field_validator("sinks")
    @classmethod
    def _check_recent(cls, sinks: int | float) -> int | float:
        if isinstance(sinks, float) and sinks >= 1:
            raise ValueError("a number of tokens must be an integer")
        return sinks or 0

    def pipeline(self) -> Pipeline:
        reach = None if self.variant == "simulation" else self.merge
        return Pipeline(
            AccumulatedAttention(), Uniform(), Oldest(self.sinks), ValueMerge(CHANCES[self.variant], reach, self.draw)
        )
