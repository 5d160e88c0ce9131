"""A prompt that was read and scored but not decided about, from which any number of caches go on."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvlab.cache.buckets.bucket import Bucket
from kvlab.cache.cache import CompressedCache
from kvlab.cache.layers.compressed_layer import CompressedLayer
from kvlab.cache.layers.decisions import conclude
from kvlab.cache.settings import LayerSettings, Observer
from kvlab.common.errors import UserError
from kvlab.methods.core.pipeline import Pipeline


def hold(cache: CompressedCache) -> CompressedCache:
    """Let `cache` (for a batch of one, still empty) stop before it decides about its prompt.

    Raises:
        UserError: its method decides in one layer what the next one works on.
    """
    if cache.settings.pipeline.saves_prefill:
        raise UserError("With prefill_saving every layer works on what the one before kept: switch it off for this.")
    cache.settings.stays_held = True
    return cache


@dataclass(frozen=True)
class Prefix:
    """`held` has read its prompt; nothing here changes, however often it is gone on from."""

    held: CompressedCache

    @torch.inference_mode()
    def cache(self, pipeline: Pipeline, observer: Observer | None = None) -> CompressedCache:
        """A cache that decides about the prompt by `pipeline`, whose score and slot state are those of the held one.

        `observer` is told of what comes after that decision.
        """
        settings, held = self.held.settings, self.held.settings.held
        assert held is not None
        settings = replace(
            settings,
            pipeline=pipeline,
            held=None,
            stays_held=False,
            rehearsal=None,
            statistics=dict(settings.statistics),
        )
        cache = copy.copy(self.held)
        cache.settings, cache.layers = settings, [_copied(layer, settings) for layer in self.held.layers]
        for layer in cache.compressed_layers():
            visible = [table.visible() for table in layer.tables]
            conclude(layer, [layer.seen_again(held[layer.rank].seen)], visible, None, True)
        settings.observer = observer
        return cache


def _copied(layer: Any, settings: LayerSettings) -> Any:
    """The layer with states of its own."""
    if not isinstance(layer, CompressedLayer):
        return copy.deepcopy(layer)
    own = copy.copy(layer)
    own.settings, own.rotary, own.lengths = settings, copy.copy(layer.rotary), list(layer.lengths)
    own.tokens_seen, own.buckets = layer.tokens_seen.clone(), [_bucket(bucket) for bucket in layer.buckets]
    own.quota = own.buckets[0].quota
    own.generator = torch.Generator(device=layer.device)
    own.generator.set_state(layer.generator.get_state())
    return own


def _bucket(bucket: Bucket) -> Bucket:
    own = copy.copy(bucket)
    own.quota, own.table = copy.copy(bucket.quota), copy.copy(bucket.table)
    own.table.slots = bucket.table.slots.map(torch.Tensor.clone)
    own.table.head_state = {name: tensor.clone() for name, tensor in bucket.table.head_state.items()}
    own.dropped, own.guard_activations = bucket.dropped.clone(), bucket.guard_activations.clone()
    return own


_TELLS = "_kvlab_tells_prompts"


def with_delimiters(pipeline: Pipeline, tokenizer: Any) -> Pipeline:
    """The same pipeline, its settler told which tokens end a chunk; others, and without a tokenizer, as they are."""
    told = pipeline.can.settle.with_tokenizer
    return pipeline if told is None or tokenizer is None else replace(pipeline, settle=told(tokenizer))


def tell_text(model: PreTrainedModel) -> None:
    """From now on caches whose method reads the text are told the ids of each pass (again does no harm)."""
    if not getattr(model, _TELLS, False):
        model.register_forward_pre_hook(_tell, with_kwargs=True)
        setattr(model, _TELLS, True)


def _tell(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    cache, ids = named.get("past_key_values"), given[0] if given else named.get("input_ids")
    if not isinstance(cache, CompressedCache) or not cache.settings.pipeline.reads_text:
        return
    if isinstance(ids, Tensor) and not any(layer.prompt_settled for layer in cache.compressed_layers()):
        cache.settings.prompt_ids.append(ids)
