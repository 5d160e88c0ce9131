"""Route Bloom's inline attention with ALiBi through the attention interface.

The slopes are passed instead of transformers' bias tensor, which does not support slots. Bloom adds the bias to scaled
logits, so its slopes are divided by the scaling that the attention function applies to both.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor


class SlotBloomAttention(BloomAttention):
    """The same projections, with the registered attention function in between."""

    config: Any  # set by `kvlab.models.families.prepare`: the original has none

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        residual: Tensor,
        alibi: Tensor,
        attention_mask: Tensor | None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Output (B, q, hidden) including the residual, and None."""
        query, key, value = self._reshape(self.query_key_value(hidden_states))
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        attend = AttentionInterface()[self.config._attn_implementation]
        scaling = self.inv_norm_factor
        output, _ = attend(
            self, query, key, value, attention_mask, scaling=scaling, slopes=self.slopes_on(query.device)
        )
        return residual + self.dense(output.flatten(2)), None

    @property
    def slopes(self) -> Tensor:
        return self.slopes_on(self.dense.weight.device)

    def slopes_on(self, device: torch.device) -> Tensor:
        """Change of each query head's logits per position, (Hq,), before scaling."""
        return _slopes(self.num_heads, device) / self.inv_norm_factor


@lru_cache
def _slopes(num_heads: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # also used by passes with gradients
        two = torch.ones(1, 2, dtype=torch.int64, device=device)
        return build_alibi_tensor(two, num_heads, torch.float32)[:, 0, 1]
