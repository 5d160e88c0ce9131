"""Copy a compressed cache, so that two texts can continue from the same state, and rows of transformers' own layers."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from kvlab.core.cache.cache import CompressedCache
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.layers.decisions import compress_if_due
from kvlab.core.cache.settings import LayerSettings, Observer
from kvlab.core.contract.pipeline import Pipeline


def copy_cache(cache: CompressedCache, observer: Observer | None = None) -> CompressedCache:
    """A cache with the same slots in tensors of its own, watched by `observer`. No decision may be pending."""
    settings = replace(cache.settings, observer=observer, statistics=dict(cache.settings.statistics), pending=None)
    return copy_with_settings(cache, settings)


def copy_with_settings(cache: CompressedCache, settings: LayerSettings) -> CompressedCache:
    """The same with other settings, which all layers of the copy share."""
    copied = copy.copy(cache)
    settings.held = replace(settings.held, layers=dict(settings.held.layers))
    copied.settings = settings
    copied.layers = []
    for layer in cache.layers:
        if not isinstance(layer, CompressedLayer):
            copied.layers.append(copy.deepcopy(layer))
            continue
        copied_layer = copy.copy(layer)
        copied.layers.append(copied_layer)
        copied_layer.settings = settings
        copied_layer.rotary = copy.copy(layer.rotary)
        copied_layer.lengths = list(layer.lengths)
        if isinstance(layer, LinearAttentionLayer):
            take_states(copied_layer, layer, copied=True)
        if not layer.is_initialized:
            continue
        copied_layer.tokens_seen = layer.tokens_seen.clone()
        copied_layer.buckets = []
        for bucket in layer.buckets:
            one = copy.copy(bucket)
            one.head_budgets = copy.copy(bucket.head_budgets)
            one.table = copy.copy(bucket.table)
            one.last_work = (), None
            one.table.map_rows(torch.Tensor.clone)
            one.table.shares_states = False
            one.index = None if bucket.index is None else {name: part.clone() for name, part in bucket.index.items()}
            one.evicted_votes = bucket.evicted_votes.clone()
            one.guard_activations = bucket.guard_activations.clone()
            copied_layer.buckets.append(one)
        only = layer.buckets[0].head_budgets is layer.head_budgets
        copied_layer.head_budgets = copied_layer.buckets[0].head_budgets if only else copy.copy(layer.head_budgets)
        copied_layer.generator = torch.Generator(device=layer.device)
        copied_layer.generator.set_state(layer.generator.get_state())
    return copied


STATES = ("keys", "values")
RECURRENT = ("conv_states", "recurrent_states")  # dictionaries of states by number


def take_states(layer: Any, other: Any, copied: bool = False) -> None:
    """Let a layer with a recurrent state use that of another one, or a copy of it."""
    for name in vars(LinearAttentionLayer(1)):
        state = getattr(other, name)
        setattr(layer, name, copy.deepcopy(state) if copied else state)


def join_layers(layers: Sequence[Any], rows: Sequence[int] | None = None) -> Any:
    """A copy of the first layer with the batch rows of all layers, which have seen equally many tokens.

    With `rows`, the copy has only these rows of the first layer; rows may repeat.
    """
    joined = copy.copy(layers[0])
    for name in STATES:
        if isinstance(getattr(joined, name, None), Tensor):
            setattr(joined, name, _joined([getattr(layer, name) for layer in layers], rows))
    for name in RECURRENT:
        if hasattr(joined, name):
            states = {number: [getattr(layer, name)[number] for layer in layers] for number in getattr(joined, name)}
            some = {number: parts for number, parts in states.items() if parts[0] is not None}
            setattr(joined, name, dict.fromkeys(states) | {n: _joined(parts, rows) for n, parts in some.items()})
    for name, flags in vars(joined).items():
        if isinstance(flags, dict) and name not in RECURRENT:
            setattr(joined, name, dict(flags))
    return joined


def _joined(parts: list[Tensor], rows: Sequence[int] | None) -> Tensor:
    if rows is None:
        return torch.cat(parts)
    return parts[0][torch.tensor(rows, dtype=torch.int64, device=parts[0].device)]


@dataclass(frozen=True)
class PromptCache:
    """A cache that has read its prompt; continuing from it does not change it."""

    prompt_cache: CompressedCache

    @torch.inference_mode()
    def cache(self, pipeline: Pipeline, observer: Observer | None = None) -> CompressedCache:
        """A cache that decides about the prompt by `pipeline`, with the score and slot state of the prompt's cache.

        `observer` observes what comes after that decision.
        """
        settings = self.prompt_cache.settings
        pending = self.prompt_cache.settings.pending
        assert pending is not None
        settings = replace(
            settings,
            pipeline=pipeline,
            pending=None,
            stays_pending=False,
            second_pass=None,
            statistics=dict(settings.statistics),
        )
        cache = copy_with_settings(self.prompt_cache, settings)
        for layer in cache.compressed_layers():
            visible = [table.visible() for table in layer.tables]
            compress_if_due(layer, [layer.seen_again(pending[layer.compressed_index].layer_pass)], visible, None, True)
        settings.observer = observer
        return cache
