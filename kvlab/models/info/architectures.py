"""Architectures of well-known models as numbers, which determine memory and speed; the weights' values do not matter.

Torch-free, as the web side plans with them too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvlab.core.errors import UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class Shape:
    """The numbers that determine bytes and operations of a decoder-only model, under transformers' names."""

    family: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    options: dict[str, Any] = field(default_factory=dict)

    def scaled(self, by: int) -> Shape:
        """The shape with layers, heads, hidden and intermediate sizes and vocabulary divided by `by`.

        `head_dim` and query heads per KV head stay, so a slot costs what it costs in the real model.
        """
        group = self.num_attention_heads // self.num_key_value_heads
        key_value_heads = max(1, self.num_key_value_heads // by)
        heads = key_value_heads * group
        return replace(
            self,
            num_hidden_layers=max(1, self.num_hidden_layers // by),
            hidden_size=heads * self.hidden_size // self.num_attention_heads,
            intermediate_size=max(64, self.intermediate_size // by),
            num_attention_heads=heads,
            num_key_value_heads=key_value_heads,
            vocab_size=max(64, self.vocab_size // by),
        )

    def config(self) -> PretrainedConfig:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        numbers: dict[str, Any] = {
            name: value for name, value in vars(self).items() if name not in ("family", "rope_theta", "options")
        }
        rope = {"rope_type": "default", "rope_theta": self.rope_theta}
        ends: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False}
        return CONFIG_MAPPING[self.family](**(numbers | ends | {"rope_parameters": rope} | self.options))


SHAPES = {
    "tiny": Shape("llama", 2, 64, 128, 4, 2, 16, 256, 65536, 1e4),
    "llama2-7b": Shape("llama", 32, 4096, 11008, 32, 32, 128, 32000, 4096, 1e4),
    "llama2-13b": Shape("llama", 40, 5120, 13824, 40, 40, 128, 32000, 4096, 1e4),
    "llama3-8b": Shape("llama", 32, 4096, 14336, 32, 8, 128, 128256, 8192, 5e5),
    "mistral-7b": Shape("mistral", 32, 4096, 14336, 32, 8, 128, 32768, 32768, 1e6, {"sliding_window": None}),
    "qwen2.5-7b": Shape("qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 32768, 1e6),
    "qwen3-8b": Shape("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 40960, 1e6),
}


def find_shape(name: str, scale: int = 1) -> Shape:
    """The named shape, made `scale` times smaller; raises UserError for an unknown name."""
    if name not in SHAPES:
        raise UserError(f"There is no shape {name!r}; choose one of {', '.join(SHAPES)}.")
    return SHAPES[name].scaled(scale) if scale > 1 else SHAPES[name]
