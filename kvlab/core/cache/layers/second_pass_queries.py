"""Second pass in one layer: record queries and scores, checkpoint and roll back, or use the prompt's own queries."""

import copy
import math
from typing import Any

import torch
from transformers.cache_utils import LinearAttentionLayer

from kvlab.core.attention.pass_view import PassView
from kvlab.core.cache.layers.layer_state import Checkpoint, LayerState
from kvlab.core.contract.view import References

UNREAD = (
    "This method reads the prompt a second time before it compresses: pass the prompt's input_ids to the model that "
    "make_cache was given, not to a submodule or an earlier copy."
)


def note_second_pass(layer: LayerState, layer_pass: PassView) -> None:
    """Update the prompt slots' scores after one piece of the second pass."""
    if layer.checkpoint is None:
        return  # already compressed, only passed through
    table = layer.buckets[0].table
    pipeline = layer.settings.pipeline
    width = layer.checkpoint.width
    score_second_pass = pipeline.score_second_pass
    if layer_pass.results is None:
        table.store(score_second_pass(table.visible(width), layer_pass))
    else:
        scores = layer_pass.results.of_part(
            "score_second_pass", pipeline.score, lambda: score_second_pass(table.visible(width), layer_pass)
        )
        table.store(scores)
    if pipeline.references:
        # Keep every n-th query of the pass, n given per row.
        every = layer.checkpoint.every
        step = torch.tensor(every, device=layer_pass.query.device)[:, None]
        place = step * torch.arange(math.ceil(layer_pass.num_new / min(every)), device=step.device)  # (B, n)
        inside = place < layer_pass.num_new
        place = place.clamp_max(layer_pass.num_new - 1)
        real = inside if layer_pass.row_valid is None else inside & layer_pass.row_valid.bool().gather(1, place)
        index = place[:, None, :, None].expand(-1, layer_pass.query.shape[1], -1, layer_pass.query.shape[3])
        query = layer_pass.query.gather(2, index)
        real = real.float()
        if layer.references is not None:
            query = torch.cat([layer.references.query, query], 2)
            real = torch.cat([layer.references.real, real], 1)
        layer.references = References(query, real)


def save_checkpoint(layer: LayerState, every: list[int]) -> Checkpoint:
    """Checkpoint a layer; `every`: stride per row at which queries to come are kept."""
    table = layer.buckets[0].table
    place = layer.tokens_seen.clone(), layer.cumulative_length, list(layer.lengths), layer.waiting
    states: dict[str, Any] = {}
    if isinstance(layer, LinearAttentionLayer):  # the state of transformers' own layer class
        names = vars(LinearAttentionLayer(1)).keys() - {"dtype", "device"}
        states = {name: value for name, value in vars(layer).items() if name in names}
    kept = copy.copy(layer.rotary), copy.deepcopy(states)
    return Checkpoint(table.width, table.is_dense, table.slots.position.dtype, *place, *kept, every)


def roll_back(layer: LayerState, checkpoint: Checkpoint) -> None:
    """Roll a layer back to `checkpoint`, except for scores; allocated space stays until `detach`."""
    layer.buckets[0].table.forget(checkpoint.width, checkpoint.dense)
    layer.tokens_seen = checkpoint.tokens_seen.clone()
    layer.cumulative_length = checkpoint.cumulative_length
    layer.lengths = list(checkpoint.lengths)
    layer.waiting = checkpoint.waiting
    layer.rotary = copy.copy(checkpoint.rotary)
    vars(layer).update(copy.deepcopy(checkpoint.states))
