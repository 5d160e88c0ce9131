"""AdaKV: SnapKV's scores, with a layer's budget split over heads by where the attention is."""

from typing import ClassVar

from pydantic import Field

from kvlab.methods.allocators.adaptive import FloorRule, HeadAdaptive
from kvlab.methods.allocators.pyramid import Pyramid
from kvlab.methods.allocators.uniform import Uniform
from kvlab.methods.base import register
from kvlab.methods.eviction.window_scored import POOLED_EDGES, SHARED_HEADS, WindowEvicting
from kvlab.methods.going_on import GOING_ON
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.eviction.evict import Evict


@register
class AdaKV(WindowEvicting):
    """Lets the heads of a layer compete: one with spread attention gets more slots than one that gathers it.

    Heads have truly different lengths, and each layer's total is exact. As a `blend` the floor is mixed into the counts
    as in the code, whose own rounding (`rounded`) misses the total by up to a slot a head; as a `guarantee` every
    head's best floor share is safe before the rest compete. `pyramid` puts PyramidKV's layer schedule on top. Acts
    once, after the prompt: generated tokens are kept on top of the budget.
    """

    name: ClassVar[str] = "adakv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "AdaKV"
    paper: ClassVar[str] = "https://arxiv.org/abs/2407.11550"

    presets: ClassVar = {
        "paper": Preset(
            "the paper's LongBench tables",
            {
                "window": (32, "LongBench/GQA_eval_longbench.sh, which makes the tables: w32_k7_maxpool"),
                "kernel": (7, "GQA_eval_longbench.sh"),
                "pooling": ("max", "GQA_eval_longbench.sh"),
                "floor": (0.2, "GQA_eval_longbench.sh and pred.py, floor_alpha"),
                "floor_rule": ("blend", "the allocation as the paper has it: the total is what was given"),
                "pyramid": (False, "Ada-SnapKV; True is Ada-Pyramid"),
                "beta": (20.0, "pred.py, pyram_beta"),
            },
            SHARED_HEADS,
        ),
        "code": Preset(
            "what the authors' code does where it is told nothing, with 1,024 slots",
            {
                "window": (32, "adaptive_snapkv/monkeypatch/monkeypatch.py, config_compress"),
                "kernel": (7, "config_compress"),
                "pooling": ("max", "config_compress"),
                "edges": ("zeros", "snapkv_utils.py, avg_pool1d counts its padding"),
                "floor": (0.5, "config_compress, floor_alpha"),
                "floor_rule": ("rounded", "snapkv_utils.py, update_kv: round(n (1 - floor) + int(floor b)) a head"),
                "normalize": (False, "config_compress sets None"),
                "skip": (0, "config_compress"),
                "pyramid": (False, "config_compress, pyram_mode"),
                "beta": (20.0, "config_compress"),
            },
            f"{SHARED_HEADS} With gqa_support it shares them too, by the mean, as here.",
        ),
        "pyramid": Preset(
            "Ada-PyramidKV",
            {
                "pyramid": (True, "pred.py --pyram"),
                "beta": (20.0, "pred.py, pyram_beta"),
                "floor": (0.2, "pred.py, floor_alpha"),
            },
            f"{SHARED_HEADS} Its layer budgets have whole-number steps and no exact total.",
        ),
    }
    reasons: ClassVar = {
        "edges": POOLED_EDGES,
        "floor": "the paper's tables; 0.5 is the code's own default",
        "floor_rule": "the total is what was asked for; the code's rounding misses it by up to a slot a head",
        "normalize": "an option of the code, off there and not in the paper",
        "skip": "an option of the code, 0 there and not in the paper",
        "pyramid": "AdaKV alone; with it the method is Ada-PyramidKV",
        **GOING_ON,
    }

    floor: float = Field(0.2, ge=0, le=1, description="share of the equal budget that no head can lose; 1: equal heads")
    floor_rule: FloorRule = Field(
        "blend", description="floor mixed into the counts, so with the code's own rounding, or kept outright"
    )
    normalize: bool = Field(False, description="weigh a head's scores by how concentrated they are, as the code can")
    skip: int = Field(0, ge=0, description="first layers whose heads stay equal")
    pyramid: bool = Field(False, description="layer budgets fall with depth as in PyramidKV")
    beta: float = Field(20.0, ge=1, description="with `pyramid`: the last layer gets 1/beta of the average")

    def pipeline(self) -> Pipeline:
        """Pooled window attention, budgets by head, the window protected, prefill only."""
        layers = Pyramid(self.window, self.beta) if self.pyramid else Uniform()
        prompt_only = Pipeline(
            self.window_attention(),
            HeadAdaptive(layers, self.window, self.floor, self.floor_rule, self.normalize, self.skip),
            LowestScore(recent=self.window),
            Evict(),
            decode=False,
        )
        return self.going_on(prompt_only)
