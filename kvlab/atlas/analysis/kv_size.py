"""Size of an uncompressed cache from a model's published shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd


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


def kv_sizes(shapes: tuple[Shape, ...], tokens: int, batch: int, bytes_per_number: int) -> pd.DataFrame:
    """One row per model: name, window, tokens (the window if `tokens` is 0), bytes, bytes per token."""
    rows = []
    for shape in shapes:
        length = tokens or shape.window
        size = shape.bytes_of(length, batch, bytes_per_number)
        one = shape.bytes_of(1, 1, bytes_per_number)
        rows.append({"name": shape.name, "window": shape.window, "tokens": length, "bytes": size, "per_token": one})
    return pd.DataFrame(rows)
