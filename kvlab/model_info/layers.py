"""What the layers of a model keep, read from `config.json` under the names that families use. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Layers that keep a window of their own, under transformers' names.
WINDOWED = ("sliding_attention", "chunked_attention", "hybrid_sliding")
WHOLE = ("full_attention", "attention", "hybrid")
# Families whose layers all slide where the configuration names a window and no kinds of layers.
ALL_SLIDE = ("mistral", "mixtral", "phi3", "starcoder2")
PATTERN = {"*": "full_attention", "M": "linear_attention", "-": "mlp", "E": "moe"}  # of Nemotron-H


def kinds_of_layers(config: Mapping[str, Any], layers: int) -> tuple[int, int, int]:
    """(layers with keys and values of the whole text, layers that slide, their window); others keep neither."""
    window = config.get("sliding_window") or config.get("attention_chunk_size") or 0
    if kinds := _named(config, layers):
        return sum(kind in WHOLE for kind in kinds), sum(kind in WINDOWED for kind in kinds), window
    if config.get("model_type") == "falcon_h1":  # attention and a state in every layer
        return layers, 0, 0
    slides = window and config.get("use_sliding_window", True) and config.get("model_type") in ALL_SLIDE
    if slides and window < config.get("max_position_embeddings", window + 1):
        return 0, layers, window
    return layers, 0, window


def count_layers(config: Mapping[str, Any]) -> int:
    """All layers. Raises KeyError where the configuration does not say."""
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    given = next((config[name] for name in names if config.get(name) is not None), None)
    return given or len(_named(config, 0)) or config[names[0]]


def _named(config: Mapping[str, Any], layers: int) -> list[str]:
    for name in ("layer_types", "layers_block_type"):
        if config.get(name):
            return list(config[name])
    if config.get("hybrid_override_pattern"):
        return [PATTERN.get(letter, "other") for letter in config["hybrid_override_pattern"]]
    attending = config.get("attn_layer_indices")
    if attending is None and config.get("attn_layer_period"):
        attending = range(config.get("attn_layer_offset", 0), layers, config["attn_layer_period"])
    if attending is None:
        return []
    return ["full_attention" if index in attending else "linear_attention" for index in range(layers)]
