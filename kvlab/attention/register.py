"""The attention and mask functions that kvlab registers with transformers.

A compressed layer needs no mask from transformers: it builds causality, slot validity and log mass itself, because its
slots are not positions. All it needs is the 2-D padding mask, so that is what the mask function passes on.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from kvlab.attention.alibi import Alibi
from kvlab.attention.handoff import take
from kvlab.attention.slot_attention import NEVER, repeat_heads, slot_attention, softmax_beside
from kvlab.errors import UserError

ATTENTION_NAME = "kvlab_slots"


def register_attention() -> str:
    """Register both functions (again does no harm) and return the name to load a model with."""
    AttentionInterface.register(ATTENTION_NAME, kvlab_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, kvlab_mask)
    return ATTENTION_NAME


def kvlab_mask(**geometry: object) -> Tensor | None:
    """The 2-D padding mask (B, tokens seen) or None for full-attention layers; a boolean 4-D mask for sliding ones."""
    if geometry.get("local_size") is not None or geometry.get("use_vmap"):
        return sdpa_mask(**geometry)  # type: ignore[arg-type]
    mask = geometry.get("attention_mask")
    return mask if isinstance(mask, Tensor) else None


def kvlab_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    slopes: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attention output (B, q, Hq, d) and None: through the compressed layer the keys came from, else plain attention.

    `slopes` (Hq,) come from kvlab's attention modules of models with ALiBi; `s_aux` (Hq,) are the logits of learned
    attention sinks (gpt-oss). Raises UserError where the model asks for something that would make the numbers wrong
    (custom 4-D masks over compressed slots).
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = take(key)
    if layer is not None:
        if attention_mask is not None and attention_mask.dim() == 4:
            raise UserError("Custom 4-D attention masks do not fit compressed slots; pass a 2-D padding mask instead.")
        output = layer.attend(query, key, value, attention_mask, scaling, softcap, module, slopes, s_aux)
    elif attention_mask is None or attention_mask.dim() == 2:
        bias, alibi = _plain_bias(attention_mask, key), _plain_alibi(slopes, attention_mask, query, key)
        sinks = None if s_aux is None else s_aux.expand(len(key), -1).unflatten(1, (key.shape[1], -1))
        output = slot_attention(query, key, value, bias, scaling=scaling, softcap=softcap, alibi=alibi, sinks=sinks)
    else:
        output = _masked(query, key, value, attention_mask, scaling, softcap, s_aux)
    return output.transpose(1, 2).contiguous(), None


def _plain_bias(padding: Tensor | None, key: Tensor) -> Tensor | None:
    if padding is None:
        return None
    hidden = torch.zeros(padding.shape, device=key.device).masked_fill(~padding.bool(), NEVER)
    return hidden[:, None, None, -key.shape[2] :].expand(-1, key.shape[1], -1, -1)


def _plain_alibi(slopes: Tensor | None, padding: Tensor | None, query: Tensor, key: Tensor) -> Alibi | None:
    """With every token in its own place: positions count what is not padding."""
    if slopes is None:
        return None
    (batch, heads, tokens), rows = key.shape[:3], query.shape[2]
    real = torch.ones(batch, tokens, dtype=torch.int64, device=key.device) if padding is None else padding[:, -tokens:]
    position = (real.long().cumsum(-1) - 1)[:, None].expand(-1, heads, -1)
    return Alibi(slopes.expand(batch, -1).unflatten(1, (heads, -1)), position, position[:, :, -rows:])


def _masked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention under a boolean (B, 1, q, S) mask: the sliding layers of a model, which keep their own cache."""
    key, value = repeat_heads(key, query), repeat_heads(value, query)
    if softcap is None and sinks is None:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    logits = query.float() @ key.float().transpose(-1, -2) * scaling
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    mass = softmax_beside(logits.masked_fill(~mask, NEVER), None if sinks is None else sinks[None, :, None])
    return (mass @ value.float()).to(query.dtype)
