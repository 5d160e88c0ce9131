"""A prompt's token ids for methods that read the text, and which of them end a chunk of it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvlab.cache.cache import CompressedCache
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.settlers.merging.seed_clusters import SeedClusters

_TELLS = "_kvlab_tells_prompts"


def with_delimiters(pipeline: Pipeline, tokenizer: Any) -> Pipeline:
    """The same pipeline, its settler told which tokens end a chunk; others, and without a tokenizer, as they are."""
    settle = pipeline.settle
    if not isinstance(settle, SeedClusters) or tokenizer is None:
        return pipeline
    return replace(pipeline, settle=replace(settle, ends=ending(tokenizer, settle.delimiters)))


@lru_cache(maxsize=4)
def ending(tokenizer: Any, delimiters: str) -> Tensor:
    """(V,) bool: tokens whose text, spaces aside, ends with one of the characters."""
    texts = tokenizer.batch_decode([[number] for number in range(len(tokenizer))])
    return torch.tensor([text.rstrip(" ").endswith(tuple(delimiters)) for text in texts])


def tell_text(model: PreTrainedModel) -> None:
    """From now on caches whose method reads the text are told the ids of each pass (again does no harm)."""
    if not getattr(model, _TELLS, False):
        model.register_forward_pre_hook(_tell, with_kwargs=True)
        setattr(model, _TELLS, True)


def _tell(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    cache, ids = named.get("past_key_values"), given[0] if given else named.get("input_ids")
    reads = isinstance(cache, CompressedCache) and cache.settings.pipeline.reads_text
    if reads and isinstance(ids, Tensor) and not any(layer.prompt_settled for layer in cache.compressed_layers()):
        cache.settings.prompt_ids.append(ids)
