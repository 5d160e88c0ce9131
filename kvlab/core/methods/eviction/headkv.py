"""HeadKV: SnapKV's scores, with the model's budget split over heads by what each head is for."""

from dataclasses import replace

from pydantic import Field

from kvlab.core.contract import LowestScore, Pipeline, Preset, register
from kvlab.core.methods.allocators.profile import HeadProfile
from kvlab.core.methods.eviction.window_methods import RKV_BUFFER, SHARED_HEADS, WINDOW_REASONS, WindowEvicting


@register
class HeadKV(WindowEvicting):
    """Gives each head a fixed share of the budget, in proportion to its score for the model, and keeps its best tokens.

    The original scores heads by retrieval and reasoning over needles that the model answers; here the scores are the
    shares of `kvlab fit`, by which any text is kept. A part of the budget is split evenly first (KVCache-Factory,
    run_longbench.py, where it is 1 - 1 / head_beta).
    """

    name = "headkv"
    family = "eviction"
    title = "HeadKV"

    profile: str = Field("mini", description="head shares: mini, a file of `kvlab fit`, or even (equal heads)")
    even: float = Field(0.2, ge=0, le=1, description="part of the budget that is split evenly, the rest by the profile")

    paper = "https://arxiv.org/abs/2410.19258"
    presets = {
        "paper": Preset(
            "the authors' runs, as in KVCache-Factory",
            {
                "window": (32, "KVCache-Factory, pyramidkv_utils.py, init_headkv"),
                "kernel": (5, "KVCache-Factory, pyramidkv_utils.py, init_headkv"),
                "pooling": ("max", "KVCache-Factory, pyramidkv_utils.py, init_headkv"),
                "even": (0.0099, "KVCache-Factory, run_longbench.py: 1 - 1 / head_beta, with head_beta 1.01"),
                "decode": ("keep", "KVCache-Factory, pyramidkv_utils.py: the prompt only"),
            },
            beyond=(f"The original takes head scores from needles; here `kvlab fit` measures them. {SHARED_HEADS}"),
        ),
    }
    reasons = {
        "profile": (
            "profiles belong to a model's weights; those of mini, mini-60 and mini-half are included, others come "
            "from `kvlab fit`"
        ),
        "kernel": "SnapKV's here",
        "even": "AdaKV's floor: a head that the profile starves on other texts keeps a few tokens",
        **WINDOW_REASONS,
        "buffer": RKV_BUFFER,
    }

    def pipeline(self) -> Pipeline:
        allocate = HeadProfile(self.profile, select=LowestScore(recent=self.window), even=self.even)
        return replace(super().pipeline(), allocate=allocate)
