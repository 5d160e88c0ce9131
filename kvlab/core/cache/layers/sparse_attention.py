"""Decode steps of a layer with sparse attention: keep the index current, read the chosen slots, count the bytes."""

import torch
from torch import Tensor

from kvlab.core.attention.pass_view import PassView
from kvlab.core.attention.read_attention import attend_chosen
from kvlab.core.cache.buckets.bucket import Bucket
from kvlab.core.cache.layers.layer_state import LayerState
from kvlab.core.cache.table.slot_table import SlotTable
from kvlab.core.contract.sparse_attention import Held, SparseAttention


def sparse_attention_of_step(layer: LayerState, rows: int) -> SparseAttention | None:
    """What a pass of `rows` queries uses; None where all slots are read, as in prompts and later turns."""
    sparse_attention = layer.settings.sparse_attention
    step = layer.cumulative_length - layer.prompt_end
    if sparse_attention is None or layer.settings.in_second_pass or rows > 1 or step < 1:
        return None
    is_dense = layer.layer_idx < sparse_attention.dense_layers or step <= sparse_attention.dense_steps
    return None if is_dense else sparse_attention


def attend_read(
    layer: LayerState, sparse_attention: SparseAttention, number: int, bucket: Bucket, layer_pass: PassView
) -> Tensor:
    """Output (N, W * G, 1, d) of bucket `number` over the slots that `sparse_attention` chooses."""
    table = bucket.table
    position = table.slots.position[:, :, : table.width]
    if table.ends_with_newest:
        newest = torch.full((*position.shape[:2], 1), table.width - 1, device=position.device)
    else:
        newest = position.argmax(-1, keepdim=True)
    bias = layer_pass.bias  # of a single query, from log mass and ALiBi
    if layer_pass.alibi is not None:
        distance = layer_pass.alibi.rows(0, 1)[:, :, :, 0] * layer_pass.scaling
        bias = distance if bias is None else distance + bias
    held = Held(
        *table.states(),
        position,
        bias,
        newest,
        layer.head_index.by_row(layer.tokens_seen)[number],
        layer_pass.scaling,
        layer_pass.softcap,
        layer_pass.moves_logits,
        table.is_dense,
        layer.layer_idx,
        layer.settings.seed,
        None if layer.head_index.whole else layer.head_index.heads_in(number)[0],
        layer_pass.rotary,
    )
    if bucket.index is None or bucket.indexed != table.arrangement:
        bucket.index = sparse_attention.index(held)
    else:
        bucket.index = sparse_attention.note(bucket.index, held)
    bucket.indexed = table.arrangement
    bucket.index_counts = sparse_attention.capabilities.estimates
    bucket.index_summarises = sparse_attention.capabilities.summarises
    query = layer_pass.query[:, :, 0].unflatten(1, (held.position.shape[1], -1))
    chosen = sparse_attention.choose(query, held, bucket.index)
    output, layer_pass.read = attend_chosen(query, held, chosen, layer_pass.sinks)
    # A slot that several query heads read by themselves counts as often.
    bucket.last_read = layer_pass.read.read.sum((2, 3)) * bytes_a_slot(table) + chosen.index_bytes
    return output


def note_bytes_read(layer: LayerState, rows: int) -> None:
    """Add what a decode step read of each row to the sum of all steps; without waiting for the device.

    `rows`: queries of a pass that read every slot, 0 if sparse attention chose. After several tokens at once an index
    is built anew.
    """
    for bucket in layer.buckets if rows else ():
        bucket.last_read = bucket.table.live() * bytes_a_slot(bucket.table) if rows == 1 else None
        if rows > 1:
            bucket.index = None
    step = layer.last_read()
    if step is not None:
        read = step.sum(-1, dtype=torch.float64)
        layer.bytes_read = read if layer.bytes_read is None else layer.bytes_read + read
        layer.steps_read += 1


def bytes_a_slot(table: SlotTable) -> Tensor | int:
    """Bytes of a slot with its metadata; with a packing store the mean (N, W) of a head's slots."""
    saved = table.saved_bytes()
    return table.slot_bytes() if saved is None else table.slot_bytes() - saved / table.live().clamp_min(1)
