"""GRKV: eviction, and survivors refitted by ridge regression."""

from typing import ClassVar

from pydantic import Field

from kvlab.methods.allocators.uniform import Uniform
from kvlab.methods.core.method import register
from kvlab.methods.core.pipeline import Pipeline
from kvlab.methods.core.published_settings import published
from kvlab.methods.eviction.window_scored import WindowEvicting
from kvlab.methods.selectors.top_k import LowestScore
from kvlab.methods.settlers.refitting.global_ridge import GlobalRidge


@register
class GRKV(WindowEvicting):
    """Drops by SnapKV's score, then moves the survivors' keys and values so that the window gets back what it had.

    Its settling works with any score and selection: `--score snapkv --select criticalkv --settle grkv`. No code was
    released; the step of the keys is kvlab's reading of the paper.
    """

    name: ClassVar[str] = "grkv"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "GRKV"
    paper, presets, reasons = published(__file__)

    rows: int = Field(32, ge=1, description="last queries whose outputs are to be given back")
    ridge: float = Field(0.01, ge=1e-6, description="how much a change of values and keys costs")
    untouched: float = Field(0.1, ge=0, le=1, description="share of the survivors, best scores first, left as they are")
    refit_keys: bool = Field(False, description="keys move too, before values do")

    def pipeline(self) -> Pipeline:
        """Pooled window attention, the window protected, a ridge over what stays."""
        settle = GlobalRidge(self.rows, self.ridge, self.untouched, self.refit_keys)
        select = LowestScore(recent=self.window)
        return self.going_on(Pipeline(self.window_attention(), Uniform(), select, settle, decode=False))
