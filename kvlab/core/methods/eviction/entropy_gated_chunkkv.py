"""ChunkKV gated by entropy: whole chunks, but only the best tokens of those with few high scores."""

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.eviction.chunkkv import ChunkKV
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
    paper, presets, reasons = published(__file__)

    few: int = Field(4, ge=1, description="tokens kept of an important chunk with few high scores")

    def pipeline(self) -> Pipeline:
        plain = super().pipeline()
        return replace(plain, select=GatedChunks(LowestScore(recent=self.window), self.length, self.few))
