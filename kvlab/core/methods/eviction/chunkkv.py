"""ChunkKV: keep or evict whole chunks of text."""

from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.eviction.window_methods import Odd, WindowEvicting
from kvlab.core.methods.selectors.chunks import Chunks
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class ChunkKV(WindowEvicting):
    """Keeps the best chunks of the text, by the mean of SnapKV's window attention, summed over heads.

    All heads of a layer keep the same chunks. The selection works with any per-head score: `--score expected-attention
    --select chunkkv`.
    """

    name: ClassVar[str] = "chunkkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "ChunkKV"
    paper, presets, reasons = published(__file__)

    length: int = Field(10, ge=1, description="tokens of a chunk")
    kernel: Odd = Field(1, ge=1, le=1025, description="width of the pooling over neighbours, odd")

    def pipeline(self) -> Pipeline:
        select = Chunks(LowestScore(recent=self.window), self.length)
        return self.going_on(Pipeline(self.window_attention(), Uniform(), select, Evict(), decode=False))
