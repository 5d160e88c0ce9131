"""ChunkKV: chunks of text stay or go whole."""

from typing import ClassVar

from pydantic import Field

from kvlab.methods.allocators.uniform import Uniform
from kvlab.methods.base import register
from kvlab.methods.eviction.window_scored import POOLED_EDGES, Odd, WindowEvicting
from kvlab.methods.going_on import GOING_ON
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.selectors.chunks import Chunks
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.eviction.evict import Evict

PRESS = "kvpress, chunkkv_press.py"


@register
class ChunkKV(WindowEvicting):
    """Keeps the best chunks of the text whole, by the mean of SnapKV's window attention, summed over heads.

    All heads of a layer keep the same chunks. Its selection works with any score that judges heads apart:
    `--score expected-attention --select chunkkv`.
    """

    name: ClassVar[str] = "chunkkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "ChunkKV"
    paper: ClassVar[str] = "https://arxiv.org/abs/2502.00299"

    presets: ClassVar = {
        "paper": Preset(
            "the paper's chunks",
            {"length": (10, "its experiments")},
            "Layers in pairs share one choice there, which here every layer makes for itself. Whole chunks are kept "
            "there; here the budget is met exactly, inside the last of them.",
        ),
        "code": Preset(
            "kvpress",
            {"length": (20, f"{PRESS}, chunk_length"), "decode": ("keep", f"{PRESS}: the prompt only")},
            "The number of whole chunks is rounded down there, and the remainder of the text counts as one.",
        ),
    }
    reasons: ClassVar = {
        "length": "the paper's; kvpress has 20",
        "window": "SnapKV's, whose score it takes here",
        "kernel": "a chunk is neighbourhood enough; SnapKV pools over 7",
        "pooling": "SnapKV's; not felt with a kernel of 1",
        "edges": POOLED_EDGES,
        **GOING_ON,
    }

    length: int = Field(10, ge=1, description="tokens of a chunk")
    kernel: Odd = Field(1, ge=1, le=1025, description="width of the pooling over neighbours, odd")

    def pipeline(self) -> Pipeline:
        """Window attention, chunks, the window protected, prefill only."""
        select = Chunks(LowestScore(recent=self.window), self.length)
        return self.going_on(Pipeline(self.window_attention(), Uniform(), select, Evict(), decode=False))
