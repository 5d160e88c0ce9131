"""PyramidPool's figure 1: context windows and the bytes of their caches, with the reader's own numbers."""

from __future__ import annotations

from kvlab.atlas.analysis.kv_size import GPT_3, PUBLISHED, Shape, kv_sizes
from kvlab.atlas.exhibit import Choice, Drawn, Entry
from kvlab.atlas.figures import cache_share as figures
from kvlab.figures.base.palette import Theme
from kvlab.figures.base.words import percent
from kvlab.results.provenance import Provenance
from kvlab.results.sources import Sources
from kvlab.results.verdict import Claim

TOKENS = Entry("kv_tokens", "Tokens", 0, 0, 10_000_000, "0: each model's own context window.")
BATCH = Entry("kv_batch", "Batch", 1, 1, 4096, "Rows decoded together.")
NUMBER = Entry("kv_bytes", "Bytes a number", 2, 1, 8, "2 for 16-bit storage, 4 for 32-bit, 1 for 8-bit.")
LAYERS = Entry("kv_layers", "Own layers", 0, 0, 1000, "Layers of a model of your own; 0 leaves it out.")
HEADS = Entry("kv_kv_heads", "Own KV heads", 8, 1, 1024)
HEAD_DIM = Entry("kv_head_dim", "Own head size", 128, 1, 1024)
ENTRIES = (TOKENS, BATCH, NUMBER, LAYERS, HEADS, HEAD_DIM)
PAPERS_GIGABYTES = 1208
CLOSE = 0.05


def draw_sizes(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...]:
    """Figure 1 for models whose shapes are published, and for one of the reader's own."""
    tokens, batch, size = (int(choice.number(entry)) for entry in (TOKENS, BATCH, NUMBER))
    frame = kv_sizes(PUBLISHED + _own(choice), tokens, batch, size)
    origin = Provenance("computed from published shapes", (f"batch {batch}", f"{size} bytes a number"))
    figure, reading = figures.kv_sizes(frame, theme), figures.read_kv_sizes(frame)
    return (Drawn("sizes", figure, frame, reading, origin, _gpt_3()),)


def _own(choice: Choice) -> tuple[Shape, ...]:
    layers, heads, head_dim = (int(choice.number(entry)) for entry in (LAYERS, HEADS, HEAD_DIM))
    window = int(choice.number(TOKENS)) or 4096
    return (Shape("your model", layers, heads, head_dim, window),) if layers else ()


def _gpt_3() -> Claim:
    ours = GPT_3.bytes_of(4096, 64, 2) / 1e9
    off = ours / PAPERS_GIGABYTES - 1
    return Claim(
        "GPT-3 with 175 billion parameters needs about 1,208 GB for a batch of 64 and 4,096 tokens.",
        "holds" if abs(off) <= CLOSE else "does not hold",
        f"96 layers of 96 heads of 128 numbers, keys and values in 16 bits: {ours:,.0f} GB, {percent(off)} more.",
    )


DRAWINGS = {"fig-1": draw_sizes}
