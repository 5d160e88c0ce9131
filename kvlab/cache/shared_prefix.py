"""Shared prompt prefix: read and scored once, then continued by any number of caches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kvlab.cache.cache import CompressedCache
from kvlab.cache.cache_copy import copy_with_settings
from kvlab.cache.layers.decisions import conclude
from kvlab.cache.settings import Observer
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
        cache = copy_with_settings(self.prompt_cache, settings)
        for layer in cache.compressed_layers():
            visible = [table.visible() for table in layer.tables]
            conclude(layer, [layer.seen_again(pending[layer.rank].seen)], visible, None, True)
        settings.observer = observer
        return cache
