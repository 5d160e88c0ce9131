"""The size of a mini model and how to build one: a plain transformers Llama with tied embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

HEAD_DIM = 32
ROPE_THETA = 50_000.0
MAX_POSITIONS = 4096


@dataclass(frozen=True)
class Shape:
    """Width, depth and feed-forward width; heads are HEAD_DIM wide, two query heads share a KV head."""

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    vocab_size: int = 4096

    @property
    def num_attention_heads(self) -> int:
        return self.hidden_size // HEAD_DIM

    @property
    def num_key_value_heads(self) -> int:
        return self.num_attention_heads // 2


def llama_config(shape: Shape, bos_token_id: int = 0, eos_token_id: int = 1) -> LlamaConfig:
    """The transformers config of a shape; padding shares EOS."""
    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        initializer_range=0.02,
        bos_token_id=bos_token_id,
        eos_token_id=eos_token_id,
        pad_token_id=eos_token_id,
    )


def build_model(shape: Shape, seed: int) -> LlamaForCausalLM:
    """A freshly initialized float32 model."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(llama_config(shape))
