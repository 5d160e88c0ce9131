"""Attention and mask functions that kvlab registers with transformers.

A compressed layer builds causality, slot validity and log mass itself, because its slots are not positions. It only
needs the 2-D padding mask, so that is what the mask function passes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.utils.import_utils import is_tracing

from kvlab.core.attention.alibi import Alibi
from kvlab.core.attention.layer_handoff import AttentionCall, take_hidden_states, take_offered_layer
from kvlab.core.attention.slot_attention import NEVER, ROW_BLOCK, repeat_heads, slot_attention, softmax_beside
from kvlab.core.errors import UserError

ATTENTION_NAME = "kvlab_slots"
OF_MODEL = "_kvlab_of_model"  # set on masks that the model built, not its user
CAST_MASKS = ("mpt",)  # families whose model calls a method of the mask


def register_attention() -> str:
    """Register both functions (idempotent) and return the name to load a model with."""
    AttentionInterface.register(ATTENTION_NAME, kvlab_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, kvlab_mask)
    return ATTENTION_NAME


def kvlab_mask(**geometry: object) -> Tensor | RowMask | None:
    """2-D padding mask (B, tokens seen) or None for full-attention layers; a boolean 4-D mask for sliding-window ones.

    Sliding-window masks of many rows are built in blocks. A prompt's mask that hides nothing becomes None, because
    attention without a bias is fused.
    """
    local = geometry.get("local_size") is not None
    rows = geometry.get("q_length")
    if local and not geometry.get("use_vmap") and isinstance(rows, int) and rows > ROW_BLOCK:
        return RowMask(geometry)
    if local or geometry.get("use_vmap"):
        model_mask = sdpa_mask(**geometry)  # type: ignore[arg-type]  # transformers' own arguments, passed on
        if isinstance(model_mask, Tensor):
            setattr(model_mask, OF_MODEL, True)
        return model_mask
    mask = geometry.get("attention_mask")
    wanted = rows == 1 or getattr(geometry.get("config"), "model_type", None) in CAST_MASKS
    # While tracing, where reading the mask would break the graph, assume that it has padding.
    hides = isinstance(mask, Tensor) and (wanted or is_tracing(mask) or not bool(mask.all()))
    return mask if isinstance(mask, Tensor) and hides else None


def kvlab_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | RowMask | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    slopes: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attention output (B, q, Hq, d) and None: computed by the compressed layer the keys came from, else plain
    attention.

    `slopes` (Hq,) come from kvlab's attention modules of ALiBi models; `s_aux` (Hq,) are logits of learned sinks
    (gpt-oss). Raises UserError for custom 4-D masks over compressed slots.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = take_offered_layer(key)
    if layer is not None:
        if isinstance(attention_mask, RowMask) or (attention_mask is not None and attention_mask.dim() == 4):
            if getattr(attention_mask, OF_MODEL, False):
                raise UserError(
                    "The model builds a mask of its own, in which tokens may see later ones, as Gemma 3 does for "
                    "images: compressed slots do not support it, so give text alone, without token_type_ids."
                )
            raise UserError("Compressed slots do not support custom 4-D attention masks: pass a 2-D padding mask.")
        hidden = take_hidden_states(module)
        call = AttentionCall(scaling, softcap, attention_mask, module, slopes, s_aux, hidden)
        if torch.is_grad_enabled():  # no gradients are tracked: slots change in place
            with torch.no_grad():
                output = layer.attend(query.detach(), key, value, call)
            output = cast(Tensor, _Forward.apply(output, query)) if query.requires_grad else output
        else:
            output = layer.attend(query, key, value, call)
    elif isinstance(attention_mask, RowMask):
        output = _masked(query, key, value, attention_mask.blocks(query.device), scaling, softcap, s_aux)
    elif attention_mask is None or attention_mask.dim() == 2:
        bias = alibi = None
        (batch, heads, tokens), rows = key.shape[:3], query.shape[2]
        if attention_mask is not None:
            padding = torch.zeros(attention_mask.shape, device=key.device).masked_fill(~attention_mask.bool(), NEVER)
            bias = padding[:, None, None, -tokens:].expand(-1, heads, -1, -1)
        if slopes is not None:  # positions count tokens that are not padding
            real = torch.ones(batch, tokens, device=key.device) if attention_mask is None else attention_mask
            position = (real[:, -tokens:].long().cumsum(-1) - 1)[:, None].expand(-1, heads, -1)
            alibi = Alibi(slopes.expand(batch, -1).unflatten(1, (heads, -1)), position, position[:, :, -rows:])
        sinks = None if s_aux is None else s_aux.expand(len(key), -1).unflatten(1, (key.shape[1], -1))
        output, _ = slot_attention(query, key, value, bias, scaling=scaling, softcap=softcap, alibi=alibi, sinks=sinks)
    else:
        blocks = (
            (slice(first, first + ROW_BLOCK), slice(None), attention_mask[:, :, first : first + ROW_BLOCK])
            for first in range(0, attention_mask.shape[2], ROW_BLOCK)
        )
        output = _masked(query, key, value, blocks, scaling, softcap, s_aux)
    return output.transpose(1, 2).contiguous(), None


class _Forward(torch.autograd.Function):
    """The identity, with a backward pass that says why there is none."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, query: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise UserError(
            "A kvlab cache holds keys and values without gradients, so nothing can be trained through it: run the "
            "model without past_key_values, or with transformers' DynamicCache."
        )


def _masked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    blocks: Iterable[tuple[slice, slice, Tensor]],
    scaling: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention with boolean masks in blocks of rows, for sliding-window layers, which keep their own cache.

    Memory is O(block x columns); time is O(q x window) if a block comes with the columns it sees.
    """
    outputs = []
    for rows, columns, mask in blocks:
        block_query = query[:, :, rows]
        keys, values = (repeat_heads(states[:, :, columns], query) for states in (key, value))
        if softcap is None and sinks is None:
            outputs.append(scaled_dot_product_attention(block_query, keys, values, attn_mask=mask, scale=scaling))
            continue
        logits = (block_query.float() * scaling) @ keys.float().transpose(-1, -2)
        if softcap is not None:
            logits = logits.div_(softcap).tanh_().mul_(softcap)
        mass = softmax_beside(logits.masked_fill_(~mask, NEVER), None if sinks is None else sinks[None, :, None])
        outputs.append((mass @ values.float()).to(query.dtype))
    return torch.cat(outputs, dim=2)


@dataclass(frozen=True)
class RowMask:
    """Arguments of a transformers mask function, kept to build the mask in blocks; models pass it on like a tensor.

    `geometry` (`transformers.masking_utils`): `q_length` queries from position `q_offset`, `kv_length` slots from
    `kv_offset`; a query sees no slot that is `local_size` or more behind it.
    """

    geometry: Mapping[str, Any]

    def blocks(self, device: torch.device) -> Iterator[tuple[slice, slice, Tensor]]:
        """(rows, columns they see, mask (B, 1, rows, columns) bool on `device`) for each block."""
        given = self.geometry
        rows = given["q_length"]
        columns = given["kv_length"]
        behind = given["q_offset"] - given["kv_offset"]  # column of the first row's own token
        for first in range(0, rows, ROW_BLOCK):
            last = min(first + ROW_BLOCK, rows)
            low = max(behind + first - given["local_size"] + 1, 0)
            high = min(behind + last, columns)
            block = {
                "q_length": last - first,
                "q_offset": given["q_offset"] + first,
                "kv_length": high - low,
                "kv_offset": given["kv_offset"] + low,
                "device": device,
                "allow_is_causal_skip": False,
            }
            if isinstance(padding := given.get("attention_mask"), Tensor):
                block["attention_mask"] = padding.to(device)
            mask = sdpa_mask(**{**given, **block})
            assert mask is not None
            yield slice(first, last), slice(low, high), mask

    def to(self, *_: object, **__: object) -> RowMask:
        """Return self: blocks are created on demand (accelerate moves what it passes to a layer)."""
        return self
