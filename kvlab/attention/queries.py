"""Query heads: how many share a KV head, and the projection of every family, for queries that no token asked."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from kvlab.errors import UserError


def num_key_value_heads(config: Any) -> int:
    """KV heads of a layer; each serves `num_attention_heads` over this many query heads."""
    if getattr(config, "model_type", "") == "falcon":
        grouped = getattr(config, "new_decoder_architecture", False)
        one = getattr(config, "multi_query", False) and not grouped
        return 1 if one else int(getattr(config, "num_kv_heads", 0) or config.num_attention_heads)
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def project_queries(module: nn.Module, hidden_states: Tensor) -> Tensor:
    """(B, Hq, n, d): the queries an attention module makes of `hidden_states` (B, n, hidden), before rotation.

    Bias and query norm are applied. Raises UserError for a module whose projection kvlab does not know.
    """
    if hasattr(module, "q_proj"):
        query = _separate(module, hidden_states)
    elif hasattr(module, "qkv_proj"):
        query = _queries_first(module, hidden_states)
    elif hasattr(module, "new_decoder_architecture"):
        query = _falcon(module, hidden_states)
    elif hasattr(module, "query_key_value"):
        query = _by_head(module, hidden_states)
    else:
        raise UserError(f"kvlab does not know how {type(module).__name__} projects queries; use another method.")
    return query.transpose(1, 2)


def _separate(module: Any, hidden_states: Tensor) -> Tensor:
    """Llama, Mistral, Qwen2 and Gemma; Qwen3 and Gemma 3 with their norm over each head."""
    query = module.q_proj(hidden_states).unflatten(-1, (-1, module.head_dim))
    return module.q_norm(query) if hasattr(module, "q_norm") else query


def _queries_first(module: Any, hidden_states: Tensor) -> Tensor:
    """Phi-3: all queries, then all keys, then all values."""
    heads = module.config.num_attention_heads
    return module.qkv_proj(hidden_states)[..., : heads * module.head_dim].unflatten(-1, (heads, module.head_dim))


def _by_head(module: Any, hidden_states: Tensor) -> Tensor:
    """GPT-NeoX: each head's query, key and value side by side."""
    fused = module.query_key_value(hidden_states).unflatten(-1, (-1, 3 * module.head_size))
    return fused[..., : module.head_size]


def _falcon(module: Any, hidden_states: Tensor) -> Tensor:
    """Falcon: groups of queries with their key and value (new), one key and value at the end, or by head (old)."""
    fused = module.query_key_value(hidden_states)
    if module.new_decoder_architecture:
        groups = module.num_kv_heads
        fused = fused.unflatten(-1, (groups, module.num_heads // groups + 2, module.head_dim))
        return fused[..., :-2, :].flatten(2, 3)
    if module.multi_query:
        return fused.unflatten(-1, (module.num_heads + 2, module.head_dim))[..., :-2, :]
    return fused.unflatten(-1, (module.num_heads, 3, module.head_dim))[..., 0, :]
