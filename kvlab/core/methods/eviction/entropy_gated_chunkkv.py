"""ChunkKV gated by entropy: whole chunks, but only the best tokens of those with few high scores."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.eviction.chunkkv import ChunkKV
from kvlab.core.methods.eviction.window_methods import POOLED_EDGES, RKV_BUFFER
from kvlab.core.methods.selectors.chunks import GatedChunks
from kvlab.core.methods.selectors.top_k import LowestScore


@register
class EntropyGatedChunkKV(ChunkKV):
    """ChunkKV that does not spend a whole chunk on one good token.

    An important chunk whose scores have a low entropy gives up all but its best `few` tokens, and the budget goes on to
    further chunks. Published in kvpress only (entropy_gated_chunkkv_press.py), which decides for the first row of a
    batch; here each row decides for itself, and the window always stays, as in ChunkKV here.
    """

    name: ClassVar[str] = "entropy-gated-chunkkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "Entropy-gated ChunkKV"

    few: int = Field(4, ge=1, description="tokens kept of an important chunk with few high scores")

    paper: ClassVar[str] = "https://github.com/NVIDIA/kvpress"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "the class of kvpress with its defaults",
            {
                "length": (10, "kvpress, entropy_gated_chunkkv_press.py, chunk_length"),
                "few": (4, "kvpress, entropy_gated_chunkkv_press.py, low_entropy_chunk_length"),
                "decode": ("keep", "kvpress, entropy_gated_chunkkv_press.py: the prompt only"),
            },
            beyond="kvpress wraps any scorer; here SnapKV's, as in ChunkKV.",
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "window": "SnapKV's, whose score it takes here",
        "kernel": "chunks replace pooling; SnapKV pools over 7",
        "pooling": "SnapKV's; no effect with a kernel of 1",
        "edges": POOLED_EDGES,
        "buffer": RKV_BUFFER,
    }

    def pipeline(self) -> Pipeline:
        plain = super().pipeline()
        return replace(plain, select=GatedChunks(LowestScore(recent=self.window), self.length, self.few))
