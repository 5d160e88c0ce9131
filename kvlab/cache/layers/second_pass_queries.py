"""What a rehearsal leaves in a layer, how the layer goes back to where it stood, and what stands in for a rehearsal."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from transformers.cache_utils import LinearAttentionLayer

from kvlab.attention.pass_view import PassSeen
from kvlab.cache.layers.decisions import note_statistic
from kvlab.cache.layers.layer_state import LayerState, Mark
from kvlab.cache.settings import LayerSettings
from kvlab.common.errors import UserError
from kvlab.methods.core.view import References

UNREAD = (
    "This method reads the prompt a second time before it compresses: pass the prompt's input_ids to the model that "
    "make_cache was given, not to a part of it or to an earlier copy."
)


def check_rehearsed(layer: LayerState) -> None:
    """Raises UserError where tokens follow a prompt that was never rehearsed: the model was not asked as a whole."""
    settings = layer.settings
    waits = settings.rehearsal is not None and not settings.rehearsal.done and not settings.rehearses_now
    if waits and layer.quota is not None and settings.held is not None:
        raise UserError(UNREAD)


def rehearsed(layer: LayerState, seen: PassSeen) -> None:
    """One layer after a pass of the rehearsal: its prompt's slots take over what the scorer makes of it."""
    if layer.marked is None:
        return  # compressed already, and only read through
    table, pipeline = layer.buckets[0].table, layer.settings.pipeline
    table.store(dict(pipeline.rehearsed(table.first(layer.marked.width), seen)))
    if pipeline.references:
        more = _some(seen, layer.marked.every)
        layer.references = more if layer.references is None else layer.references.and_more(more)


def _some(seen: PassSeen, every: list[int]) -> References:
    """Every so many-th query of a pass, for each row."""
    step = torch.tensor(every, device=seen.query.device)[:, None]
    place = step * torch.arange(math.ceil(seen.num_new / min(every)), device=step.device)  # (B, n)
    inside, place = place < seen.num_new, place.clamp_max(seen.num_new - 1)
    real = inside if seen.row_valid is None else inside & seen.row_valid.bool().gather(1, place)
    index = place[:, None, :, None].expand(-1, seen.query.shape[1], -1, seen.query.shape[3])
    return References(seen.query.gather(2, index), real.float())


def mark(layer: LayerState, every: list[int]) -> Mark:
    """Where a layer stands now; of the queries of each row to come, one in `every` is to be kept."""
    table = layer.buckets[0].table
    place = layer.tokens_seen.clone(), layer.cumulative_length, list(layer.lengths), layer.waiting
    states: dict[str, Any] = _recurrent(layer) if isinstance(layer, LinearAttentionLayer) else {}
    kept = copy.copy(layer.rotary), copy.deepcopy(states)
    return Mark(table.width, table.is_dense, table.slots.position.dtype, *place, *kept, every)


def go_back(layer: LayerState, mark: Mark) -> None:
    """The layer as it was, but for scores; room that was made stays until `detach`."""
    layer.buckets[0].table.forget(mark.width, mark.dense)
    layer.tokens_seen, layer.cumulative_length = mark.tokens_seen.clone(), mark.cumulative_length
    layer.lengths, layer.waiting, layer.rotary = list(mark.lengths), mark.waiting, copy.copy(mark.rotary)
    vars(layer).update(copy.deepcopy(mark.states))


def _recurrent(layer: LayerState) -> dict[str, Any]:
    """What transformers' own layer class keeps."""
    names = vars(LinearAttentionLayer(1)).keys() - {"dtype", "device"}
    return {name: value for name, value in vars(layer).items() if name in names}


def take_last_queries(settings: LayerSettings) -> None:
    """Show the scorer the prompt's own last queries, as if they were a rehearsal."""
    for waiting in (settings.held or {}).values():
        table = waiting.layer.buckets[0].table
        table.store(dict(settings.pipeline.rehearsed(table.visible(), waiting.seen)))
        note_statistic(waiting.layer, waiting.seen)
