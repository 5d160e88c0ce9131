"""Bytes of an uncompressed cache from a model's published shape."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Shape:
    """The numbers of a model's configuration that its cache depends on."""

    name: str
    num_hidden_layers: int
    num_key_value_heads: int
    head_dim: int
    window: int  # tokens, as published

    def bytes_of(self, tokens: int, batch: int, bytes_per_number: int) -> int:
        """Keys and values of so many tokens in every layer and KV head."""
        per_token = 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * bytes_per_number
        return per_token * tokens * batch


# From the models' published configurations; models that publish none (GPT-4, Claude, Gemini) cannot be computed.
PUBLISHED = (
    Shape("GPT-3 175B", 96, 96, 128, 2048),
    Shape("Falcon 7B", 32, 1, 64, 2048),
    Shape("Llama 2 7B", 32, 32, 128, 4096),
    Shape("Llama 2 13B", 40, 40, 128, 4096),
    Shape("Llama 2 70B", 80, 8, 128, 4096),
    Shape("Llama 3 8B", 32, 8, 128, 8192),
    Shape("Mistral 7B v0.2", 32, 8, 128, 32768),
    Shape("Mixtral 8x7B", 32, 8, 128, 32768),
    Shape("Qwen2.5 7B", 28, 4, 128, 131072),
    Shape("Llama 3.1 8B", 32, 8, 128, 131072),
    Shape("Llama 3.1 70B", 80, 8, 128, 131072),
    Shape("Llama 3.1 405B", 126, 8, 128, 131072),
)
GPT_3 = PUBLISHED[0]


def kv_sizes(shapes: tuple[Shape, ...], tokens: int, batch: int, bytes_per_number: int) -> pd.DataFrame:
    """One row a model: name, window, tokens asked for (its window where `tokens` is 0), bytes, bytes a token."""
    rows = []
    for shape in shapes:
        length = tokens or shape.window
        size = shape.bytes_of(length, batch, bytes_per_number)
        one = shape.bytes_of(1, 1, bytes_per_number)
        rows.append({"name": shape.name, "window": shape.window, "tokens": length, "bytes": size, "per_token": one})
    return pd.DataFrame(rows)
