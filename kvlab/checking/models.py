"""Tiny random models to try a method on, each a family with attention of its own kind."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvlab.models.load import prepare

VOCABULARY = 97
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
# Smallest difference to a plain decoder first: grouped queries; norms on queries and keys; capped logits between
# sliding layers; a query head to every KV head, partly rotated; one KV head for all, positions as biases.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "qwen3": GROUPED,
    "gemma2": {**GROUPED, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "gpt_neox": {"rotary_pct": 0.5},
    "falcon": {"multi_query": True, "new_decoder_architecture": False, "alibi": False},
}
OUTSIDE = {"falcon": ("intermediate_size",)}


@lru_cache(maxsize=2 * len(FAMILIES))
def plain_model(family: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A random model with transformers' own attention; the same weights every time."""
    return _built(family, dtype)


@lru_cache(maxsize=2 * len(FAMILIES))
def lab_model(family: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The same with kvlab's attention."""
    return prepare(_built(family, dtype))


def _built(family: str, dtype: torch.dtype) -> PreTrainedModel:
    shape: dict[str, Any] = {name: value for name, value in SHAPE.items() if name not in OUTSIDE.get(family, ())}
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**shape, **FAMILIES[family])
    return (
        AutoModelForCausalLM.from_config(config, attn_implementation="eager", trust_remote_code=False).to(dtype).eval()
    )
