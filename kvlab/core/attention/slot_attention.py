"""Attention over slots: softmax(q k / sqrt(d) + log_mass) v, in row blocks, so that no T x T tensor exists."""

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from kvlab.core.attention.alibi import Alibi
from kvlab.core.attention.tiles import NEVER, Tiles

ROW_BLOCK = 256


def slot_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    *,
    scaling: float,
    softcap: float | None = None,
    alibi: Alibi | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention output (B, Hq, q, d) of q queries over S slots, the last q of which are the queries' own tokens.

    Also returns the log-sum-exp of each query's logits (B, Hq, q) float32, without learned sinks, if the kernel returns
    it.

    `query` (B, Hq, q, d); `key`, `value` (B, H, S, d); `bias` None or (B, H, 1 or G, S) float32, added to the logits
    (log mass; -inf at hidden slots). Query i sees slots up to S - q + i. `sinks` (B, H, G) are the logits of a learned
    slot without a value. Kernels do not support sinks, soft-capping or ALiBi's float32 bias per query head; these use
    an explicit implementation.
    """
    rows = query.shape[2]
    columns = key.shape[2]
    if softcap is not None or alibi is not None or sinks is not None:
        tiles = Tiles(query, key, bias, scaling, softcap, alibi)
        outputs = []
        normalizers = []
        beside = None if sinks is None else sinks[..., None]
        for first in range(0, rows, ROW_BLOCK):
            last = min(first + ROW_BLOCK, rows)
            reach = tiles.key.shape[2] - rows + last
            logits = tiles.logits(slice(first, last), slice(0, reach))  # (B, H, G, r, reach)
            normalizers.append(torch.logsumexp(logits, -1).flatten(1, 2))
            output = softmax_beside(logits, beside).flatten(2, 3) @ value[:, :, :reach].float()
            outputs.append(output.unflatten(2, logits.shape[2:4]).flatten(1, 2).to(tiles.query.dtype))
        return torch.cat(outputs, dim=2), torch.cat(normalizers, 2)
    if rows == 1:
        # The group's queries become rows of one KV head, so keys and values are not repeated.
        packed = query.reshape(query.shape[0], key.shape[1], -1, query.shape[3])
        mask = None if bias is None else bias.to(query.dtype)
        output = scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
        return output.reshape(*query.shape[:2], 1, value.shape[-1]), None
    key = repeat_heads(key, query)
    value = repeat_heads(value, query)
    if bias is None and rows == columns:
        return attention_and_normalizers(query, key, value, scaling, causal=True)
    bias = None if bias is None else repeat_heads(bias.flatten(1, 2)[..., None], query)[..., 0]
    if bias is not None and rows == columns and query.device.type in CHANNELS_ON:
        return channel_attention(query, key, value, bias, scaling, causal=True)
    exact = bias is None or query.dtype == torch.float32  # a 16-bit mask rounds log mass
    outputs = []
    normalizers = []
    for first in range(0, rows, ROW_BLOCK):
        last = min(first + ROW_BLOCK, rows)
        reach = columns - rows + last
        mask = _causal(first, last, rows, columns, query.device)
        if bias is not None:
            # A padding row sees nothing and would give NaN: let it see itself, since no other row attends to it.
            row = torch.arange(first, last, device=query.device)[:, None] + (columns - rows)
            diagonal = torch.arange(columns, device=query.device)[None] == row
            visible = bias[:, :, None].masked_fill(~mask, NEVER)
            blind = torch.isneginf(visible).all(-1, keepdim=True)
            mask = visible.masked_fill(diagonal & blind, 0.0).to(query.dtype)
        reached = query[:, :, first:last], key[:, :, :reach], value[:, :, :reach]
        output, normalizer = attention_and_normalizers(*reached, scaling, causal=False, mask=mask[..., :reach])
        outputs.append(output)
        normalizers += [normalizer] if normalizer is not None and exact else []
    whole = torch.cat(normalizers, 2) if len(normalizers) == len(outputs) else None
    return torch.cat(outputs, dim=2), whole


def slot_logits(
    query: Tensor,
    key: Tensor,
    *,
    first: int,
    rows: int,
    scaling: float,
    softcap: float | None = None,
    alibi: Alibi | None = None,
) -> Tensor:
    """Logits (B, H, G, r, S) float32 of the r queries starting at row `first` of `rows`, -inf above the diagonal.

    `query` (B, Hq, r, d) holds those rows only; log mass is not added.
    """
    batch, _, block, head_dim = query.shape
    heads = key.shape[1]
    columns = key.shape[2]
    grouped = query.reshape(batch * heads, -1, head_dim).float()
    keys = key.float().flatten(0, 1).transpose(-1, -2)
    room = grouped.new_empty(())  # never read: beta is 0
    logits = torch.baddbmm(room, grouped, keys, beta=0, alpha=scaling).view(batch, heads, -1, block, columns)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if alibi is not None:
        logits = logits + alibi.rows(first, first + block) * scaling
    if rows > 1:
        logits = logits.masked_fill(~_causal(first, first + block, rows, columns, query.device), NEVER)
    return logits


def probabilities(logits: Tensor, bias: Tensor | None, sinks: Tensor | None = None) -> Tensor:
    """Softmax (B, H, G, r, S) of logits plus bias (B, H, 1 or G, S); rows without visible slots are zeros.

    With `sinks` (B, H, G) rows sum to less than one: the rest goes to the learned sink.
    """
    if bias is not None:
        logits = logits + bias[:, :, :, None]
    return softmax_beside(logits, None if sinks is None else sinks[..., None])


def softmax_beside(logits: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax (..., r, S) of logits with one additional logit (..., r or 1), which is dropped from the result.

    This is how transformers treats gpt-oss's `sinks`. Rows without visible slots are zeros.
    """
    if sinks is not None:
        beside = sinks.to(logits)[..., None].expand(*logits.shape[:-1], 1)
        return torch.softmax(torch.cat([logits, beside], -1), -1)[..., :-1]
    return torch.nan_to_num(torch.softmax(logits, dim=-1), nan=0.0)


def repeat_heads(states: Tensor, query: Tensor) -> Tensor:
    """Repeat each KV head of `states` (B, H, S, d) for its group of query heads, (B, Hq, S, d)."""
    group = query.shape[1] // states.shape[1]
    return states if group == 1 else states.repeat_interleave(group, dim=1)


def _causal(first: int, last: int, rows: int, columns: int, device: torch.device) -> Tensor:
    row = torch.arange(first, last, device=device)[:, None] + (columns - rows)
    return torch.arange(columns, device=device)[None] <= row


HIDDEN = -2e3  # far below any log mass, and finite in every dtype once divided by the scaling
PARTS = 3
ALIGN = 8  # head widths of flash kernels are multiples of this


# Devices on which log mass is faster added by channels than as a bias, to a pass of as many queries as slots (a
# left-padded prompt). On a CPU channels take 0.65 x the time of a bias at 512 tokens, 0.31 x at 2,048, 0.11 x in
# bfloat16 (one thread, 2 rows, 8 query and 2 KV heads of width 128, median of 7). On CUDA, unmeasured, a float bias
# rules FlashAttention out.
CHANNELS_ON = ("cpu", "cuda")


def channel_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scaling: float, causal: bool
) -> tuple[Tensor, Tensor | None]:
    """(softmax(q k scaling + bias) v (B, Hq, q, d), log-sum-exp of its logits (B, Hq, q) if the kernel returns it).

    For kernels without a float bias, whose logits get it exactly from extra coordinates: q' = (q, 1, 1, 1) and
    k' = (k, b1, b2, b3) with b1 + b2 + b3 = bias / scaling. One 16-bit number is too coarse for a log mass: each holds
    the rounding error of the ones before.

    `key`, `value` (B, Hq, S, d), `bias` (B, Hq, S). `causal` needs as many queries as slots. A query without visible
    slots gets a mean of hidden ones.
    """
    dim = value.shape[-1]
    wide = -(-(query.shape[-1] + PARTS) // ALIGN) * ALIGN
    extended_query = torch.cat([query, query.new_ones(*query.shape[:-1], PARTS)], -1)
    parts = []
    left = bias.clamp_min(HIDDEN) / scaling
    for _ in range(PARTS):
        parts.append(left.to(key.dtype))
        left = left - parts[-1].float()
    extended_key = torch.cat([key, torch.stack(parts, -1)], -1)
    # explicit scale, because the padded width no longer gives it
    output, normalizers = attention_and_normalizers(
        pad(extended_query, (0, wide - extended_query.shape[-1])),
        pad(extended_key, (0, wide - extended_key.shape[-1])),
        pad(value, (0, wide - dim)),
        scaling,
        causal=causal,
    )
    return output[..., :dim], normalizers


MOST_FLASH = 256  # head_dim


def attention_and_normalizers(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, *, causal: bool, mask: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """(output (B, Hq, q, d), log-sum-exp of the logits (B, Hq, q) float32), `causal` or with a `mask`.

    `query`, `key` and `value` all have Hq heads. The log-sum-exp is None if the kernel does not return it.
    """
    aten = torch.ops.aten
    alike = query.shape[-1] == value.shape[-1]
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
