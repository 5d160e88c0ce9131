"""Route Falcon's inline attention through the attention interface.

States that Falcon would repeat per query head (newer architecture) stay at the number of KV heads, so the cache stores
each once. With ALiBi, slopes are passed to the attention function, because the bias must follow each slot's position;
transformers' bias tensor does not support slots. (transformers 5.23 adds that tensor twice with `eager`, in the mask
and in the layer; kvlab adds it once, like `sdpa` and the original model.)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.models.falcon.modeling_falcon import FalconAttention, apply_rotary_pos_emb, build_alibi_tensor


class SlotFalconAttention(FalconAttention):
    """The same projections and rotation, with the registered attention function in between."""

    def forward(  # type: ignore[override]
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
        query, key, value = self._states(self.query_key_value(hidden_states))
        slopes = self.slopes_on(query.device)
        if slopes is None:
            assert position_embeddings is not None
            query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        attend = AttentionInterface()[self.config._attn_implementation]
        output, _ = attend(self, query, key, value, attention_mask, scaling=self.inv_norm_factor, slopes=slopes)
        return self.dense(output.flatten(2)), None

    @property
    def slopes(self) -> Tensor | None:
        return self.slopes_on(self.query_key_value.weight.device)

    def slopes_on(self, device: torch.device) -> Tensor | None:
        """Change of each query head's logits per position, (Hq,), before scaling; None without ALiBi."""
        return _slopes(self.num_heads, device) if self.config.alibi else None

    def _states(self, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, rows, _ = fused.shape
        if self.new_decoder_architecture:
            heads = int(self.num_kv_heads or self.num_heads)
            fused = fused.view(batch, rows, heads, self.num_heads // heads + 2, self.head_dim)
            parts = fused[..., :-2, :].flatten(2, 3), fused[..., -2, :], fused[..., -1, :]
        else:
            parts = self._split_heads(fused)
        query, key, value = (part.transpose(1, 2) for part in parts)
        return query, key, value


@lru_cache
def _slopes(num_heads: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # also used by passes with gradients
        two = torch.ones(1, 2, dtype=torch.int64, device=device)
        return build_alibi_tensor(two, num_heads, torch.float32)[:, 0, 1].bfloat16()  # the dtype of the multiplication
