"""Bloom does its attention inline, with ALiBi; this routes it through the attention interface.

The slopes are handed over instead of transformers' tensor of biases, which knows no slots. Bloom adds the bias to
logits that are scaled already, so its slopes are divided by the scaling that the attention function applies to both.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor


class SlotBloomAttention(BloomAttention):
    """The same projections, with the registered attention function in the middle."""

    config: Any  # given by `kvlab.models.families.prepare`: the original has none

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
        """Output (B, q, hidden), the residual added, and None."""
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
        """Those of `slopes_on` the device where the module's own weights are."""
        return self.slopes_on(self.dense.weight.device)

    def slopes_on(self, device: torch.device) -> Tensor:
        """(Hq,) by how much a logit of each query head changes per position, before scaling."""
        return _slopes(self.num_heads, device) / self.inv_norm_factor


@lru_cache
def _slopes(num_heads: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # kept for passes that want gradients too
        two = torch.ones(1, 2, dtype=torch.int64, device=device)
        return build_alibi_tensor(two, num_heads, torch.float32)[:, 0, 1]
