"""GRKV: eviction, and kept slots refitted by ridge regression."""

from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.eviction.window_methods import WindowEvicting
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.refitting.global_ridge import GlobalRidge


@register
class GRKV(WindowEvicting):
    """Evicts by SnapKV's score, then changes the kept slots' keys and values to restore the window's outputs.

    The settler works with any score and selection: `--score snapkv --select criticalkv --settle grkv`. No code was
    released; the key step is kvlab's reading of the paper.
    """

    name: ClassVar[str] = "grkv"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "GRKV"
    paper, presets, reasons = published(__file__)

    rows: int = Field(32, ge=1, description="last queries whose outputs are restored")
    ridge: float = Field(0.01, ge=1e-6, description="cost of changing values and keys")
    untouched: float = Field(0.1, ge=0, le=1, description="share of the best-scored kept slots that stay unchanged")
    refit_keys: bool = Field(False, description="change keys too, before values")

    def pipeline(self) -> Pipeline:
        settle = GlobalRidge(self.rows, self.ridge, self.untouched, self.refit_keys)
        select = LowestScore(recent=self.window)
        return self.going_on(Pipeline(self.window_attention(), Uniform(), select, settle, decode=False))
