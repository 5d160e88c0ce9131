"""ChunkKV keeps or evicts whole chunks of text; gated by entropy, of some only the best tokens."""

from dataclasses import replace

from pydantic import Field

from kvlab.core.contract import LowestScore, Pipeline, Preset, register
from kvlab.core.methods.eviction.window_methods import PROMPT_ONLY, RKV_BUFFER, WINDOW_REASONS, Odd, WindowEvicting
from kvlab.core.methods.selectors.chunks import Chunks, GatedChunks


@register
class ChunkKV(WindowEvicting):
    """Keeps the best chunks of the text, by the mean of SnapKV's window attention, summed over heads; what it finds
    depends on a token's place in its chunk (`kvlab table --of phase`).

    All heads of a layer keep the same chunks. The selection works with any per-head score:
    `compose:score=expected-attention:select=chunkkv`.
    """

    name = "chunkkv"
    family = "eviction"
    title = "ChunkKV"

    length: int = Field(10, ge=1, description="tokens of a chunk")
    kernel: Odd = Field(1, ge=1, le=1025, description="width of the pooling over neighbours, odd")

    paper = "https://arxiv.org/abs/2502.00299"
    presets = {
        "paper": Preset(
            "the paper's chunks",
            {
                "length": (10, "its experiments"),
            },
            beyond=(
                "The original shares one choice between two layers, and keeps whole chunks; here every layer chooses, "
                "and the budget is met exactly, within the last chunk."
            ),
        ),
        "code": Preset(
            "kvpress",
            {
                "length": (20, "kvpress, chunkkv_press.py, chunk_length"),
                "decode": ("keep", "kvpress, chunkkv_press.py: the prompt only"),
            },
            beyond="kvpress rounds the number of chunks down and treats the remainder of the text as one.",
        ),
    }
    reasons = {
        "length": "the paper's; kvpress has 20",
        "window": "SnapKV's, whose score it takes here",
        "kernel": "chunks replace pooling; SnapKV pools over 7",
        "pooling": "SnapKV's; no effect with a kernel of 1",
        **WINDOW_REASONS,
        "decode": PROMPT_ONLY,
        "buffer": RKV_BUFFER,
    }

    def pipeline(self) -> Pipeline:
        return replace(super().pipeline(), select=Chunks(LowestScore(recent=self.window), self.length))


@register
class EntropyGatedChunkKV(ChunkKV):
    """ChunkKV that does not spend a whole chunk on one good token; what it finds depends on a token's place in its
    chunk (`kvlab table --of phase`).

    An important chunk whose scores have a low entropy gives up all but its best `few` tokens, and the budget goes on to
    further chunks. Published in kvpress only (entropy_gated_chunkkv_press.py), which decides for the first row of a
    batch; here each row decides for itself, and the window always stays, as in ChunkKV here.
    """

    name = "entropy-gated-chunkkv"
    family = "eviction"
    title = "Entropy-gated ChunkKV"

    few: int = Field(4, ge=1, description="tokens kept of an important chunk with few high scores")

    paper = "https://github.com/NVIDIA/kvpress"
    presets = {
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
    reasons = {
        "window": "SnapKV's, whose score it takes here",
        "kernel": "chunks replace pooling; SnapKV pools over 7",
        "pooling": "SnapKV's; no effect with a kernel of 1",
        **WINDOW_REASONS,
        "buffer": RKV_BUFFER,
    }

    def pipeline(self) -> Pipeline:
        select = GatedChunks(LowestScore(recent=self.window), self.length, self.few)
        return replace(super().pipeline(), select=select)
