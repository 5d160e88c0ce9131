"""Route the inline attention of Bloom, Falcon and MPT through the attention interface.

With ALiBi the slopes are passed to the attention function, because the bias must follow each slot's position, which
transformers' bias tensor does not. Bloom and MPT add the bias to scaled logits, so their slopes are divided by the
scaling that the attention function applies to both.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache
from transformers.models.bloom.modeling_bloom import BloomAttention
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as build_bloom_alibi
from transformers.models.falcon.modeling_falcon import FalconAttention, apply_rotary_pos_emb
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as build_falcon_alibi
from transformers.models.mpt.modeling_mpt import MptAttention, build_mpt_alibi_tensor


def find_cache(positional: Sequence[Any], named: Mapping[str, Any]) -> Cache | None:
    """The first transformers `Cache` among a call's arguments, whatever its name; None if there is none.

    The name depends on the version and the caller: transformers 5.24 calls the argument `cache`, 5.23
    `past_key_values`, and 5.24 still takes the old name, which a hook then receives as it was passed.
    """
    return next((one for one in (*positional, *named.values()) if isinstance(one, Cache)), None)


class RoutedAttention:
    """Base of the replacements: calls the registered attention function between a module's projections."""

    config: Any  # set by `kvlab.core.families.prepare` where the original has none
    slopes_on: Callable[[torch.device], Tensor | None]  # change of each query head's logits per position, (Hq,)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
        """Attention output (B, q, hidden), before the output projection."""
        attend = AttentionInterface()[self.config._attn_implementation]
        slopes: Any = self.slopes_on(query.device)
        module: Any = self
        return attend(module, query, key, value, mask, scaling=scaling, slopes=slopes)[0].flatten(2)


class SlotBloomAttention(RoutedAttention, BloomAttention):
    """Bloom's projections; the output includes the residual."""

    def forward(  # type: ignore[override]  # the family's own arguments
        self,
        hidden_states: Tensor,
        residual: Tensor,
        alibi: Tensor,
        attention_mask: Tensor | None,
        layer_past: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        query, key, value = self._reshape(self.query_key_value(hidden_states))
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        output = self.attend(query, key, value, attention_mask, self.inv_norm_factor)
        return residual + self.dense(output), None

    def slopes_on(self, device: torch.device) -> Tensor:
        """Before scaling."""
        return _slopes(build_bloom_alibi, self.num_heads, device, torch.float32) / self.inv_norm_factor


class SlotFalconAttention(RoutedAttention, FalconAttention):
    """Falcon's projections and rotation.

    States that Falcon would repeat per query head (newer architecture) stay at the number of KV heads, so the cache
    stores each once. (transformers 5.23 adds the bias tensor twice with `eager`, in the mask and in the layer; kvlab
    adds it once, like `sdpa` and the original model.)
    """

    def forward(
        self,
        hidden_states: Tensor,
        alibi: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None = None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        fused = self.query_key_value(hidden_states)
        if self.new_decoder_architecture:
            heads = int(self.num_kv_heads or self.num_heads)
            fused = fused.view(*fused.shape[:2], heads, self.num_heads // heads + 2, self.head_dim)
            parts = fused[..., :-2, :].flatten(2, 3), fused[..., -2, :], fused[..., -1, :]
        else:
            parts = self._split_heads(fused)
        query, key, value = (part.transpose(1, 2) for part in parts)
        if not self.config.alibi:
            assert position_embeddings is not None
            query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        return self.dense(self.attend(query, key, value, attention_mask, self.inv_norm_factor)), None

    def slopes_on(self, device: torch.device) -> Tensor | None:
        """In the dtype in which Falcon multiplies them by positions; None without ALiBi."""
        if not self.config.alibi:
            return None
        return _slopes(build_falcon_alibi, self.num_heads, device, torch.bfloat16)


class SlotMptAttention(RoutedAttention, MptAttention):
    """MPT's projections."""

    def forward(
        self,
        hidden_states: Tensor,
        position_bias: Tensor,
        *args: Any,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        fused = self.Wqkv(hidden_states)
        if self.clip_qkv:
            fused = fused.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        query, key, value = (part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in fused.chunk(3, -1))
        cache: Any = find_cache(args, kwargs)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        return self.out_proj(self.attend(query, key, value, attention_mask, self.softmax_scale)), None

    def slopes_on(self, device: torch.device) -> Tensor:
        """Before scaling."""
        assert self.softmax_scale is not None
        return _slopes(build_mpt_alibi_tensor, self.n_heads, device, torch.float32) / self.softmax_scale


# Inline attention classes and their replacements with the attention interface.
INLINE: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "falcon": (FalconAttention, SlotFalconAttention),
    "bloom": (BloomAttention, SlotBloomAttention),
    "mpt": (MptAttention, SlotMptAttention),
}


@lru_cache
def _slopes(build: Callable[..., Tensor], num_heads: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # also used by passes with gradients
        if build is build_mpt_alibi_tensor:
            last = build(num_heads, 2, device=device)[:, 0]  # of positions -1 and 0
            return (last[:, 1] - last[:, 0]).to(dtype)
        two = torch.ones(1, 2, dtype=torch.int64, device=device)
        return build(two, num_heads, torch.float32)[:, 0, 1].to(dtype)


def give_a_mask(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """Arguments of a pass of MPT with a padding mask: it converts the mask before checking that there is one."""
    if kwargs.get("attention_mask") is not None or len(args) > 2:
        return None
    ids = args[0] if args else kwargs.get("input_ids")
    ids = kwargs["inputs_embeds"][..., 0] if ids is None else ids
    cache = find_cache(args, kwargs)
    before = 0 if cache is None else cache.get_seq_length()
    ones = torch.ones(ids.shape[0], before + ids.shape[1], dtype=torch.int64, device=ids.device)
    return args, kwargs | {"attention_mask": ones}
