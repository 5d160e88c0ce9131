"""torch's fused attention together with the log-sum-exp of every query, which its public function keeps to itself."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

MOST_FLASH = 256  # head_dim


def attention_and_normalizers(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, *, causal: bool, mask: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """(output (B, Hq, q, d), log-sum-exp of the logits (B, Hq, q) float32); `causal` or under a `mask`.

    All of `query`, `key` and `value` have Hq heads. None instead of the log-sum-exp where the kernel gives none.
    """
    aten, alike = torch.ops.aten, query.shape[-1] == value.shape[-1]
    if query.device.type == "cpu" and alike:
        if mask is not None and mask.dtype == torch.bool:
            mask = query.new_zeros(mask.shape).masked_fill_(~mask, float("-inf"))
        output, normalizers = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=scaling
        )
        return output, normalizers
    half = query.dtype in (torch.float16, torch.bfloat16)
    if query.device.type == "cuda" and mask is None and half and alike and query.shape[-1] <= MOST_FLASH:
        output, normalizers = aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, False, scale=scaling
        )[:2]
        return output, normalizers[..., : query.shape[2]]
    return scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scaling), None
