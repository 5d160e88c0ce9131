"""A model's text config and head counts, and the query and output projections of every model family."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from kvlab.core.errors import UserError


def text_config(model: nn.Module) -> Any:
    """The text decoder's config; None for a module without config."""
    config = getattr(model, "config", None)
    return None if config is None else config.get_text_config(decoder=True)


def family(model: nn.Module) -> str:
    """transformers' name of the model family; empty without config."""
    return getattr(text_config(model), "model_type", "")


# Set on models that reset their recurrent state at every pass of several tokens, so that no such pass may follow.
STARTS_ANEW = "_kvlab_guards_passes"


def full_attention_config(config: Any) -> Any:
    """Config of the first full-attention layer; sliding-window layers may have other heads (Gemma 4)."""
    kinds = getattr(config, "layer_types", None) or []
    layers = getattr(config, "per_layer_config", None)  # not in transformers 5.17
    return config if layers is None else layers[kinds.index("full_attention") if "full_attention" in kinds else 0]


def num_key_value_heads(config: Any) -> int:
    """Number of KV heads of a full-attention layer; each serves `num_attention_heads` / this many query heads."""
    config = full_attention_config(config)
    if getattr(config, "model_type", "") == "falcon":
        grouped = getattr(config, "new_decoder_architecture", False)
        one = getattr(config, "multi_query", False) and not grouped
        return 1 if one else int(getattr(config, "num_kv_heads", 0) or config.num_attention_heads)
    kind: Any = type(config)
    grouped = not isinstance(config, PreTrainedConfig) or _groups_heads(kind)
    return int((grouped and getattr(config, "num_key_value_heads", None)) or config.num_attention_heads)


@cache
def _groups_heads(family: Any) -> bool:
    """Whether models of this configuration have KV heads of their own; others ignore the number, though it is kept."""
    declares = any("num_key_value_heads" in vars(base).get("__annotations__", {}) for base in family.__mro__)
    return declares or hasattr(family(), "num_key_value_heads")


def project_queries(module: Any, hidden_states: Tensor) -> Tensor:
    """Queries (B, Hq, n, d) that an attention module projects from `hidden_states` (B, n, hidden), before rotation.

    Includes bias and query norm, but not `position_factor`. Raises UserError for an unknown attention module.
    """
    if hasattr(module, "q_proj"):  # Llama and most others
        query = module.q_proj(hidden_states)
        width = getattr(module.config, "num_attention_heads", 0) * module.head_dim
        if query.shape[-1] == 2 * width:  # interleaved with a gate per head (Qwen 3.5)
            query = query.unflatten(-1, (-1, 2 * module.head_dim))[..., : module.head_dim].flatten(-2)
        # A norm per head (Qwen3, Gemma 3) or over all heads (OLMo 2). Llama 4 normalizes after rotation: that norm has
        # no weights, and rotation preserves length.
        norms = (getattr(module, name, None) for name in ("q_norm", "q_layernorm", "qk_norm"))
        norm = next((norm for norm in norms if norm is not None), None)
        weight = getattr(norm, "weight", None)
        if norm is not None and isinstance(weight, Tensor) and weight.shape == query.shape[-1:]:
            query = norm(query)
            norm = None
        clip = getattr(module.config, "clip_qkv", None)  # OLMo
        query = (query if clip is None else query.clamp(-clip, clip)).unflatten(-1, (-1, module.head_dim))
        if norm is not None:
            query = norm(query.transpose(1, 2)).transpose(1, 2) if hasattr(norm, "norms") else norm(query)
    elif hasattr(module, "qkv_proj"):
        heads = module.config.num_attention_heads  # Phi-3: all queries, then all keys, then all values
        query = module.qkv_proj(hidden_states)[..., : heads * module.head_dim].unflatten(-1, (heads, module.head_dim))
    elif hasattr(module, "Wqkv"):
        fused = module.Wqkv(hidden_states)  # MPT: all queries, then all keys, then all values; clipped if configured
        if module.clip_qkv:
            fused = fused.clamp(min=-module.clip_qkv, max=module.clip_qkv)
        query = fused.chunk(3, -1)[0].unflatten(-1, (module.n_heads, -1))
    elif hasattr(module, "new_decoder_architecture"):
        fused = module.query_key_value(hidden_states)
        if module.new_decoder_architecture:  # groups of queries with their key and value
            groups = module.num_kv_heads
            fused = fused.unflatten(-1, (groups, module.num_heads // groups + 2, module.head_dim))
            query = fused[..., :-2, :].flatten(2, 3)
        elif module.multi_query:  # one shared pair at the end
            query = fused.unflatten(-1, (module.num_heads + 2, module.head_dim))[..., :-2, :]
        else:  # by head
            query = fused.unflatten(-1, (module.num_heads, 3, module.head_dim))[..., 0, :]
    elif hasattr(module, "query_key_value"):
        size = getattr(module, "head_size", None) or module.head_dim  # GPT-NeoX, Bloom: a head's parts are adjacent
        query = module.query_key_value(hidden_states).unflatten(-1, (-1, 3 * size))[..., :size]
    else:
        raise UserError(f"kvlab does not know the query projection of {type(module).__name__}: use another method.")
    return query.transpose(1, 2)


def position_factor(module: Any, position: Tensor) -> Tensor | None:
    """Factor (B,) float32 of queries at `position` (B,); None if the model has none.

    Llama 4 has one in layers without rotation, beyond its first 8,192 tokens; Ministral 3 in all layers, beyond 16,384.
    """
    tuned = getattr(module, "attn_temperature_tuning", False)
    if tuned and not getattr(module, "use_rope", True):
        return torch.log1p(((position + 1.0) / module.floor_scale).floor()) * module.attn_scale + 1.0
    if getattr(getattr(module, "config", None), "model_type", "") == "ministral3":
        rope = module.config.rope_parameters
        width = rope.get("original_max_position_embeddings")
        beta = rope.get("llama_4_scaling_beta")
        return 1.0 + beta * torch.log1p((position / width).floor())
    return None


OUTPUT_NAMES = ("o_proj", "out_proj", "dense")


def output_weight(module: nn.Module, heads: int) -> Tensor:
    """Output projection (heads, d, hidden) per head, without bias or gate; raises UserError if it is unknown."""
    found = (getattr(getattr(module, name, None), "weight", None) for name in OUTPUT_NAMES)
    weight = next((each for each in found if isinstance(each, Tensor)), None)
    if weight is None or weight.dim() != 2 or weight.shape[1] % heads:
        raise UserError(f"kvlab does not know the output projection of {type(module).__name__}: use another method.")
    plain = weight.to_dense() if weight.is_mkldnn else weight  # bfloat16 on a CPU lies in oneDNN's order
    return plain.unflatten(1, (heads, -1)).permute(1, 2, 0)
