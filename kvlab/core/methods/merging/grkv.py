"""GRKV: eviction, and kept slots refitted by ridge regression."""

from dataclasses import replace

from pydantic import Field

from kvlab.core.contract import Pipeline, Preset, register
from kvlab.core.methods.eviction.window_methods import PROMPT_ONLY, RKV_BUFFER, WINDOW_REASONS, WindowEvicting
from kvlab.core.methods.settlers.global_ridge import GlobalRidge


@register
class GRKV(WindowEvicting):
    """Evicts by SnapKV's score, then changes the kept slots' keys and values to restore the window's outputs.

    The settler works with any score and selection: `compose:score=snapkv:select=criticalkv:settle=grkv`. No code was
    released; the key step is kvlab's reading of the paper.
    """

    name = "grkv"
    family = "merging"
    title = "GRKV"

    rows: int = Field(32, ge=1, description="last queries whose outputs are restored")
    ridge: float = Field(0.01, ge=1e-6, description="cost of changing values and keys")
    untouched: float = Field(0.1, ge=0, le=1, description="share of the best-scored kept slots that stay unchanged")
    refit_keys: bool = Field(False, description="change keys too, before values")

    paper = "https://arxiv.org/abs/2605.31105"
    presets = {
        "paper": Preset(
            "the paper's settings, from secondary sources",
            {
                "rows": (32, "surrogate queries m; 48 and 64 were worse in its ablation"),
                "ridge": (0.01, "lambda_k = lambda_v"),
                "untouched": (0.1, "beta, the share of survivors left as they are"),
                "refit_keys": (True, "keys and values in turn, once"),
            },
        ),
    }
    reasons = {
        "refit_keys": "text KL on mini at 20 % (5 prompts): .036 with keys, .033 without, SnapKV .036",
        "window": "SnapKV's, whose score it takes here",
        "kernel": "SnapKV's",
        "pooling": "SnapKV's",
        **WINDOW_REASONS,
        "decode": PROMPT_ONLY,
        "buffer": RKV_BUFFER,
    }

    def pipeline(self) -> Pipeline:
        settle = GlobalRidge(self.rows, self.ridge, self.untouched, self.refit_keys)
        return replace(super().pipeline(), settle=settle)
