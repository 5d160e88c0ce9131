"""Attention over slots: softmax(q k / sqrt(d) + log_mass) v, in row blocks, so that no T x T tensor exists."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvlab.attention.alibi import Alibi
from kvlab.attention.log_mass_padding import attention_and_normalizers, channel_attention, prompt_way
from kvlab.attention.tiles import NEVER, Tiles

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
    rows, columns = query.shape[2], key.shape[2]
    if softcap is not None or alibi is not None or sinks is not None:
        return _explicit_attention(Tiles(query, key, bias, scaling, softcap, alibi), value, sinks)
    if rows == 1:
        return _one_query(query, key, value, bias, scaling), None
    key, value = repeat_heads(key, query), repeat_heads(value, query)
    if bias is None and rows == columns:
        return attention_and_normalizers(query, key, value, scaling, causal=True)
    bias = None if bias is None else repeat_heads(bias.flatten(1, 2)[..., None], query)[..., 0]
    if bias is not None and rows == columns and prompt_way(query.device) == "channels":
        return channel_attention(query, key, value, bias, scaling, causal=True)
    exact = bias is None or query.dtype == torch.float32  # a 16-bit mask rounds log mass
    outputs, normalizers = [], []
    for first in range(0, rows, ROW_BLOCK):
        last = min(first + ROW_BLOCK, rows)
        reach = columns - rows + last
        mask = _block_mask(bias, first, last, rows, columns, query)[..., :reach]
        reached = query[:, :, first:last], key[:, :, :reach], value[:, :, :reach]
        output, normalizer = attention_and_normalizers(*reached, scaling, causal=False, mask=mask)
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
    heads, columns = key.shape[1], key.shape[2]
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


def _one_query(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scaling: float) -> Tensor:
    # The group's queries become rows of one KV head, so keys and values are not repeated.
    batch, query_heads, _, head_dim = query.shape
    packed = query.reshape(batch, key.shape[1], -1, head_dim)
    mask = None if bias is None else bias.to(query.dtype)
    output = scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    return output.reshape(batch, query_heads, 1, value.shape[-1])


def _explicit_attention(tiles: Tiles, value: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    outputs, normalizers, rows = [], [], tiles.query.shape[2]
    beside = None if sinks is None else sinks[..., None]
    for first in range(0, rows, ROW_BLOCK):
        last = min(first + ROW_BLOCK, rows)
        reach = tiles.key.shape[2] - rows + last
        logits = tiles.logits(slice(first, last), slice(0, reach))  # (B, H, G, r, reach)
        normalizers.append(torch.logsumexp(logits, -1).flatten(1, 2))
        output = softmax_beside(logits, beside).flatten(2, 3) @ value[:, :, :reach].float()
        outputs.append(output.unflatten(2, logits.shape[2:4]).flatten(1, 2).to(tiles.query.dtype))
    return torch.cat(outputs, dim=2), torch.cat(normalizers, 2)


def _causal(first: int, last: int, rows: int, columns: int, device: torch.device) -> Tensor:
    row = torch.arange(first, last, device=device)[:, None] + (columns - rows)
    return torch.arange(columns, device=device)[None] <= row


def _block_mask(bias: Tensor | None, first: int, last: int, rows: int, columns: int, query: Tensor) -> Tensor:
    causal = _causal(first, last, rows, columns, query.device)
    if bias is None:
        return causal
    # A padding row sees nothing and would give NaN: let it see itself, since no other row attends to it.
    own = torch.arange(columns, device=query.device)[None] == (
        torch.arange(first, last, device=query.device)[:, None] + (columns - rows)
    )
    visible = bias[:, :, None].masked_fill(~causal, NEVER)
    blind = torch.isneginf(visible).all(-1, keepdim=True)
    return visible.masked_fill(own & blind, 0.0).to(query.dtype)
