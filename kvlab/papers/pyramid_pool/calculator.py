"""PyramidPool's figure 1: sizes of uncompressed caches from published shapes, with user input."""

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from plotly.subplots import make_subplots

from kvlab.papers.exhibit import Choice, Drawn, Entry, draws
from kvlab.results.sources import Sources
from kvlab.results.verdict import FAILS, HOLDS, Claim, Threshold
from kvlab.views.base import HUES, INK, Provenance, Theme, byte_size, contrast, finish, percent, pick


@dataclass(frozen=True)
class Shape:
    """The parts of a model's configuration that determine its cache size."""

    name: str
    num_hidden_layers: int
    num_key_value_heads: int
    head_dim: int
    window: int  # tokens, as published

    def bytes_of(self, tokens: int, batch: int, bytes_per_number: int) -> int:
        """Keys and values of this many tokens in every layer and KV head."""
        per_token = 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * bytes_per_number
        return per_token * tokens * batch


# From the models' published configurations; models without one (GPT-4, Claude, Gemini) cannot be computed.
_TABLE = pd.read_csv(Path(__file__).with_name("published_shapes.csv"))
PUBLISHED = tuple(Shape(*row) for row in _TABLE.itertuples(index=False, name=None))
GPT_3 = PUBLISHED[0]


def cache_sizes(shapes: tuple[Shape, ...], tokens: int, batch: int, bytes_per_number: int) -> pd.DataFrame:
    """One row per model: name, window, tokens (the window if `tokens` is 0), bytes, bytes per token."""
    rows = []
    for shape in shapes:
        length = tokens or shape.window
        size = shape.bytes_of(length, batch, bytes_per_number)
        one = shape.bytes_of(1, 1, bytes_per_number)
        rows.append({"name": shape.name, "window": shape.window, "tokens": length, "bytes": size, "per_token": one})
    return pd.DataFrame(rows)


TOKENS = Entry("kv_tokens", "Tokens", 0, 0, 10_000_000, "0: each model's own context window.")
BATCH = Entry("kv_batch", "Batch", 1, 1, 4096, "Rows decoded together.")
NUMBER = Entry("kv_bytes", "Bytes per number", 2, 1, 8, "2 for 16-bit storage, 4 for 32-bit, 1 for 8-bit.")
LAYERS = Entry("kv_layers", "Own layers", 0, 0, 1000, "Layers of a model of your own; 0 leaves it out.")
HEADS = Entry("kv_kv_heads", "Own KV heads", 8, 1, 1024)
HEAD_DIM = Entry("kv_head_dim", "Own head size", 128, 1, 1024)
ENTRIES = (TOKENS, BATCH, NUMBER, LAYERS, HEADS, HEAD_DIM)
PAPERS_GIGABYTES = 1208
CLOSE = 0.05
GPU_BYTES = 80e9


@draws("pyramid-pool/fig-1")
def draw_sizes(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...]:
    """Figure 1: cache sizes of models with published shapes, of the claim, and of a user-defined model."""
    tokens, batch, size = (int(choice.number(entry)) for entry in (TOKENS, BATCH, NUMBER))
    layers, heads, head_dim = (int(choice.number(entry)) for entry in (LAYERS, HEADS, HEAD_DIM))
    shapes = PUBLISHED + ((Shape("your model", layers, heads, head_dim, tokens or 4096),) if layers else ())
    claimed = cache_sizes((replace(GPT_3, name=f"{GPT_3.name}, the claim: batch 64"),), 4096, 64, 2)
    frame = pd.concat([claimed, cache_sizes(shapes, tokens, batch, size)], ignore_index=True)
    gigabytes = float(claimed["bytes"].iloc[0]) / 1e9
    off = gigabytes / PAPERS_GIGABYTES - 1
    claim = Claim(
        "GPT-3 with 175 billion parameters needs about 1,208 GB for a batch of 64 and 4,096 tokens.",
        HOLDS if abs(off) <= CLOSE else FAILS,
        f"96 layers of 96 heads of 128 numbers, keys and values in 16 bits: {gigabytes:,.0f} GB, {percent(off)} more.",
        threshold=Threshold((1 - CLOSE) * PAPERS_GIGABYTES, "within a twentieth", up_to=(1 + CLOSE) * PAPERS_GIGABYTES),
        units=(gigabytes,),
        printed=(PAPERS_GIGABYTES,),
    )
    # Bars of tokens and bytes, one row per model; a line marks the memory of a GPU.
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.04)
    beyond = frame["bytes"] > GPU_BYTES
    patterns = ["/" if over else "" for over in beyond]
    bars = (
        ("tokens", "blue", [f"{count:,}" for count in frame["tokens"]], None),
        ("bytes", "orange", [byte_size(size) for size in frame["bytes"]], patterns),
    )
    for column, (name, hue, words, pattern) in enumerate(bars, start=1):
        figure.add_bar(
            x=frame[name],
            y=frame["name"],
            orientation="h",
            text=words,
            textposition="auto",
            name=name,
            marker={"color": pick(HUES[hue], theme), "pattern": {"shape": pattern}},
            row=1,
            col=column,
            hovertemplate="%{y}: %{text}<extra></extra>",
        )
    finish(
        figure,
        title="Size of the uncompressed cache",
        x="",
        y="",
        theme=theme,
        height=130 + 32 * len(frame),
        legend=False,
    )
    figure.update_xaxes(type="log", exponentformat="SI", dtick=1)
    figure.update_xaxes(title_text="tokens", col=1).update_xaxes(title_text="bytes (hatched: above 80 GB)", col=2)
    figure.add_vline(GPU_BYTES, line={"color": INK[theme], "dash": "dot", "width": 1.2}, row=1, col=2)
    figure.update_yaxes(autorange="reversed").update_yaxes(title_text="model", col=1)
    caption = contrast(
        frame.set_index("name")["bytes"],
        "The most memory is needed by {most}, the least by {least}.",
        "All caches need the same memory.",
        "Only {only} is shown.",
    )
    origin = Provenance("computed from published shapes", (f"batch {batch}", f"{size} bytes per number"))
    return (Drawn("sizes", figure, frame, caption, origin, claim),)
