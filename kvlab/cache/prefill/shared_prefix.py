"""Shared prompt prefix: read and scored once, then continued by any number of caches."""

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


def defer_decision(cache: CompressedCache) -> CompressedCache:
    """Make the empty, batch-of-one `cache` stop before it decides about its prompt.

    Raises UserError for prefill saving, where a layer's decision determines the next layer's input.
    """
    if cache.settings.pipeline.saves_prefill:
        raise UserError("A shared prompt does not work with prefill_saving: turn it off.")
    cache.settings.stays_pending = True
    return cache


@dataclass(frozen=True)
class Prefix:
    """A cache that has read its prompt; continuing from a prefix does not change it."""

    prompt_cache: CompressedCache

    @torch.inference_mode()
    def cache(self, pipeline: Pipeline, observer: Observer | None = None) -> CompressedCache:
        """A cache that decides about the prompt by `pipeline`, with the score and slot state of the prompt's cache.

        `observer` observes what comes after that decision.
        """
        settings, pending = self.prompt_cache.settings, self.prompt_cache.settings.pending
        assert pending is not None
        settings = replace(
            settings,
            pipeline=pipeline,
            pending=None,
            stays_pending=False,
            rehearsal=None,
            statistics=dict(settings.statistics),
        )
        cache = copy.copy(self.prompt_cache)
        cache.settings, cache.layers = settings, [_copied(layer, settings) for layer in self.prompt_cache.layers]
        for layer in cache.compressed_layers():
            visible = [table.visible() for table in layer.tables]
            conclude(layer, [layer.seen_again(pending[layer.rank].seen)], visible, None, True)
        settings.observer = observer
        return cache


def _copied(layer: Any, settings: LayerSettings) -> Any:
    """Copy of the layer with its own states."""
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
    own.evicted_votes, own.guard_activations = bucket.evicted_votes.clone(), bucket.guard_activations.clone()
    return own


_RECORDS = "_kvlab_records_token_ids"


def with_delimiters(pipeline: Pipeline, tokenizer: Any) -> Pipeline:
    """Pass the tokenizer to a settler that needs chunk delimiters; other pipelines unchanged."""
    configure = pipeline.can.settle.with_tokenizer
    return pipeline if configure is None or tokenizer is None else replace(pipeline, settle=configure(tokenizer))


def record_token_ids(model: PreTrainedModel) -> None:
    """Install a hook that reports token ids to caches whose method reads text (idempotent)."""
    if not getattr(model, _RECORDS, False):
        model.register_forward_pre_hook(_record, with_kwargs=True)
        setattr(model, _RECORDS, True)


def _record(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    cache, ids = named.get("past_key_values"), given[0] if given else named.get("input_ids")
    if not isinstance(cache, CompressedCache) or not cache.settings.pipeline.reads_text:
        return
    if isinstance(ids, Tensor) and not any(layer.prompt_settled for layer in cache.compressed_layers()):
        cache.settings.prompt_ids.append(ids)
