"""AdaKV: SnapKV's scores, with a layer's budget split over heads by attention."""

from dataclasses import replace

from pydantic import Field

from kvlab.core.contract import Pipeline, Preset, Uniform, register
from kvlab.core.methods.allocators.adaptive import FloorRule, HeadAdaptive
from kvlab.core.methods.allocators.pyramid import Pyramid
from kvlab.core.methods.eviction import window_methods


@register
class AdaKV(window_methods.WindowEvicting):
    """Lets the heads of a layer compete: heads with spread attention get more slots than those with concentrated
    attention.

    Heads differ in length, and each layer's total is exact. With `blend` the floor is mixed into the counts as in the
    code, whose own rounding (`rounded`) misses the total by up to a slot per head; with `guarantee` every head's best
    floor share is safe before the rest compete. `pyramid` adds PyramidKV's layer schedule. Acts once, after the prompt:
    generated tokens are kept in addition to the budget.
    """

    name = "adakv"
    family = "eviction"
    title = "AdaKV"

    floor: float = Field(0.2, ge=0, le=1, description="share of the equal budget that no head can lose; 1: equal heads")
    floor_rule: FloorRule = Field(
        "blend", description="floor mixed into the counts, the same with the code's rounding, or guaranteed"
    )
    normalize: bool = Field(False, description="weight a head's scores by their concentration, an option of the code")
    skip: int = Field(0, ge=0, description="first layers whose heads stay equal")
    pyramid: bool = Field(False, description="layer budgets fall with depth as in PyramidKV")
    beta: float = Field(20.0, ge=1, description="with `pyramid`: the last layer gets 1/beta of the average")

    paper = "https://arxiv.org/abs/2407.11550"
    presets = {
        "paper": Preset(
            "the paper's LongBench tables",
            {
                "window": (32, "LongBench/GQA_eval_longbench.sh, which makes the tables: w32_k7_maxpool"),
                "kernel": (7, "GQA_eval_longbench.sh"),
                "pooling": ("max", "GQA_eval_longbench.sh"),
                "floor": (0.2, "GQA_eval_longbench.sh and pred.py, floor_alpha"),
                "floor_rule": ("blend", "the allocation in the paper keeps the total"),
                "pyramid": (False, "Ada-SnapKV; True is Ada-Pyramid"),
                "beta": (20.0, "pred.py, pyram_beta"),
            },
            beyond=window_methods.SHARED_HEADS,
        ),
        "code": Preset(
            "the authors' code with its defaults and 1,024 slots",
            {
                "window": (32, "adaptive_snapkv/monkeypatch/monkeypatch.py, config_compress"),
                "kernel": (7, "config_compress"),
                "pooling": ("max", "config_compress"),
                "edges": ("zeros", "snapkv_utils.py, avg_pool1d includes its padding"),
                "floor": (0.5, "config_compress, floor_alpha"),
                "floor_rule": ("rounded", "snapkv_utils.py, update_kv: round(n (1 - floor) + int(floor b)) per head"),
                "normalize": (False, "config_compress sets None"),
                "skip": (0, "config_compress"),
                "pyramid": (False, "config_compress, pyram_mode"),
                "beta": (20.0, "config_compress"),
            },
            beyond=(f"{window_methods.SHARED_HEADS} With gqa_support it averages them, as here."),
        ),
        "pyramid": Preset(
            "Ada-PyramidKV",
            {
                "pyramid": (True, "pred.py --pyram"),
                "beta": (20.0, "pred.py, pyram_beta"),
                "floor": (0.2, "pred.py, floor_alpha"),
            },
            beyond=(f"{window_methods.SHARED_HEADS} Its layer budgets have integer steps and no exact total."),
        ),
    }
    reasons = {
        **window_methods.WINDOW_REASONS,
        "floor": "the paper's tables; 0.5 is the code's own default",
        "floor_rule": "keeps the requested total; the code's rounding misses it by up to a slot per head",
        "normalize": "an option of the code, off there and not in the paper",
        "skip": "an option of the code, 0 there and not in the paper",
        "pyramid": "plain AdaKV; with it the method is Ada-PyramidKV",
        "decode": window_methods.PROMPT_ONLY,
        "buffer": window_methods.RKV_BUFFER,
    }

    def pipeline(self) -> Pipeline:
        layers = Pyramid(self.window, self.beta) if self.pyramid else Uniform()
        allocate = HeadAdaptive(layers, self.window, self.floor, self.floor_rule, self.normalize, self.skip)
        return replace(super().pipeline(), allocate=allocate)
