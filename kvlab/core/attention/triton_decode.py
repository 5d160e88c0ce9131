# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""One decode query per head on a GPU: output, slot probabilities and logits in one pass over the keys.

`chosen_attention` does so over given slots only, and loads no key or value of another.

Split-K (flash decoding): each program takes a stretch of one head's slots and keeps a running log-sum-exp; a second
kernel combines the stretches. Sums are float32 for every dtype; offsets are 64-bit because a cache may exceed 2^31
elements. Importing this module needs the package `triton` (extra `kernels`).
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvlab.core.attention.kernels import launch_shape, pad_side, shared_memory

MOST_SPLITS = 64
# Of the combining kernel: with four, the assembler spills for one query head of width 64 on sm_80.
TOGETHER_WARPS = 8
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # the interpreter's matrix product does not support bfloat16


def ragged_attention(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(output (B, H, G, d), probabilities (B, H, G, S), logits (B, H, G, S)); the last two float32, without log mass.

    `query` (B, H, G, d); `keys`, `values` (B, H, S, d), any strides but the last; `bias` None or (B, H, S) float32: log
    mass, -inf at hidden slots. A head without valid slots gets zeros. Raises UserError if the device's shared memory is
    too small.
    """
    return _attend(query, keys, values, None, bias, scaling)


def chosen_attention(
    query: Tensor, keys: Tensor, values: Tensor, slots: Tensor, bias: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor]:
    """(output (B, H, G, d), probabilities (B, H, G, k) float32) over chosen slots.

    `slots` (B, H, U, k) int64: the k slots that all query heads of a KV head read (U 1), or each its own (U G). `bias`
    None or (B, H, U, k) float32: log mass and log weight, -inf where nothing is read. Otherwise as `ragged_attention`.
    """
    batch, heads, sets, count = slots.shape
    rows = query.reshape(batch, heads * sets, -1, query.shape[-1])  # one row per set of slots
    given = None if bias is None else bias.reshape(batch, heads * sets, count)
    output, mass, _ = _attend(rows, keys, values, slots.reshape(batch, heads * sets, count), given, scaling)
    return output.view_as(query), mass.view(batch, heads, -1, count)


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, chosen: Tensor | None, bias: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch both kernels; with `chosen` (B, rows of queries, k), `rows / H` of which share one KV head's states."""
    batch, heads, group, dim = query.shape
    slots = keys.shape[2] if chosen is None else chosen.shape[2]
    rows = batch * heads
    block, stages, warps = launch_shape(dim, keys.dtype, shared_memory(query.device), group)
    splits = max(1, min(MOST_SPLITS, triton.cdiv(slots, block)))
    stretch = triton.cdiv(triton.cdiv(slots, splits), block) * block
    splits = triton.cdiv(slots, stretch)
    query = query.contiguous()
    room = query.new_empty(0, dtype=torch.float32)
    logits, mass = room.new_empty(2, batch, heads, group, slots).unbind(0)
    parts = room.new_empty(rows, splits, group, dim)
    tops, sums = room.new_empty(2, rows, splits, group).unbind(0)
    output = torch.empty_like(query)
    shape = {"heads": heads, "group": group, "slots": slots, "dim": dim}
    blocks = {"BLOCK_G": pad_side(group), "BLOCK_S": block, "BLOCK_D": pad_side(dim)}
    bias_rows = bias if bias is not None else logits  # never read without a bias
    places = query.new_empty(0, dtype=torch.int64) if chosen is None else chosen.contiguous()
    _stretch[(rows, splits)](
        query,
        keys,
        values,
        places,
        bias_rows,
        logits,
        parts,
        tops,
        sums,
        scaling,
        stretch,
        splits,
        **shape,
        sets=heads // keys.shape[1],
        HAS_PLACES=chosen is not None,
        key_b=keys.stride(0),
        key_h=keys.stride(1),
        key_s=keys.stride(2),
        value_b=values.stride(0),
        value_h=values.stride(1),
        value_s=values.stride(2),
        bias_b=bias_rows.stride(0),
        bias_h=bias_rows.stride(1),
        bias_s=bias_rows.stride(-1),
        HAS_BIAS=bias is not None,
        WIDEN=INTERPRETED,
        **blocks,
        num_stages=stages,
        num_warps=warps,
    )
    _combine_parts[(rows, splits)](
        bias_rows,
        logits,
        mass,
        parts,
        tops,
        sums,
        output,
        stretch,
        splits,
        **shape,
        bias_b=bias_rows.stride(0),
        bias_h=bias_rows.stride(1),
        bias_s=bias_rows.stride(-1),
        BLOCK_P=triton.next_power_of_2(splits),
        HAS_BIAS=bias is not None,
        **blocks,
        num_warps=TOGETHER_WARPS,
    )
    return output, mass, logits


@triton.jit
def _stretch(
    query,
    keys,
    values,
    places,
    bias,
    logits,
    parts,
    tops,
    sums,
    scaling,
    stretch,
    splits,
    heads,
    group,
    slots,
    dim,
    sets,
    key_b,
    key_h,
    key_s,
    value_b,
    value_h,
    value_s,
    bias_b,
    bias_h,
    bias_s,
    HAS_PLACES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One head's slots from `split * stretch` on: logits, and the stretch's output, maximum and sum.

    With HAS_PLACES, its slots are those that `places` names in the table of the KV head, which `sets` rows share.
    """
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    b = row // heads
    h = row % heads
    g = tl.arange(0, BLOCK_G)
    d = tl.arange(0, BLOCK_D)
    wide = (g[:, None] < group) & (d[None, :] < dim)
    queries = tl.load(query + (row * group + g[:, None]) * dim + d[None, :], mask=wide, other=0.0)
    top = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    mixed = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    first = split * stretch
    for start in range(first, tl.minimum(first + stretch, slots), BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        there = s < slots
        place = s.to(tl.int64)
        both = there[:, None] & (d[None, :] < dim)
        where = tl.load(places + row * slots + place, mask=there, other=0) if HAS_PLACES else place
        kv = h // sets
        at_key = keys + b * key_b + kv * key_h + where[:, None] * key_s + d[None, :]
        at_value = values + b * value_b + kv * value_h + where[:, None] * value_s + d[None, :]
        key = tl.load(at_key, mask=both, other=0.0)
        value = tl.load(at_value, mask=both, other=0.0)
        if WIDEN:
            queries = queries.to(tl.float32)
            key = key.to(tl.float32)
            value = value.to(tl.float32)
        raw = tl.dot(queries, tl.trans(key), input_precision="ieee") * scaling
        kept = (g[:, None] < group) & there[None, :]
        tl.store(logits + (row * group + g[:, None]) * slots + place[None, :], raw, mask=kept)
        if HAS_BIAS:
            raw += tl.load(bias + b * bias_b + h * bias_h + place * bias_s, mask=there, other=float("-inf"))[None, :]
        raw = tl.where(there[None, :], raw, float("-inf"))
        newer = tl.maximum(top, tl.max(raw, 1))
        safe = tl.where(newer == float("-inf"), 0.0, newer)
        weight = tl.exp(raw - safe[:, None])
        fade = tl.exp(top - safe)
        total = total * fade + tl.sum(weight, 1)
        mixed = mixed * fade[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        top = newer
    out = (row * splits + split) * group + g
    tl.store(parts + out[:, None] * dim + d[None, :], mixed, mask=wide)
    tl.store(tops + out, top, mask=g < group)
    tl.store(sums + out, total, mask=g < group)


@triton.jit
def _combine_parts(
    bias,
    logits,
    mass,
    parts,
    tops,
    sums,
    output,
    stretch,
    splits,
    heads,
    group,
    slots,
    dim,
    bias_b,
    bias_h,
    bias_s,
    BLOCK_P: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Probabilities of one stretch; the first stretch's program also writes the head's output."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    b = row // heads
    h = row % heads
    g = tl.arange(0, BLOCK_G)
    d = tl.arange(0, BLOCK_D)
    p = tl.arange(0, BLOCK_P)
    stat = (row * splits + p[:, None]) * group + g[None, :]
    known = (p[:, None] < splits) & (g[None, :] < group)
    highest = tl.load(tops + stat, mask=known, other=float("-inf"))
    top = tl.max(highest, 0)
    safe = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.load(sums + stat, mask=known, other=0.0) * tl.exp(highest - safe[None, :]), 0)
    share = 1.0 / tl.where(total > 0, total, 1.0)
    first = split * stretch
    for start in range(first, tl.minimum(first + stretch, slots), BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        there = s < slots
        place = s.to(tl.int64)
        at = (row * group + g[:, None]) * slots + place[None, :]
        kept = (g[:, None] < group) & there[None, :]
        raw = tl.load(logits + at, mask=kept, other=float("-inf"))
        if HAS_BIAS:
            raw += tl.load(bias + b * bias_b + h * bias_h + place * bias_s, mask=there, other=float("-inf"))[None, :]
        tl.store(mass + at, tl.exp(raw - safe[:, None]) * share[:, None], mask=kept)
    if split == 0:
        mixed = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
        wide = (g[:, None] < group) & (d[None, :] < dim)
        for part in range(splits):
            out = (row * splits + part) * group + g
            fade = tl.exp(tl.load(tops + out, mask=g < group, other=float("-inf")) - safe)
            mixed += fade[:, None] * tl.load(parts + out[:, None] * dim + d[None, :], mask=wide, other=0.0)
        place = (row * group + g[:, None]) * dim + d[None, :]
        tl.store(output + place, (mixed * share[:, None]).to(output.dtype.element_ty), mask=wide)
