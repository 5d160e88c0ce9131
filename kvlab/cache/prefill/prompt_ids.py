"""A prompt's token ids for methods that read the text, and which of them end a chunk of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from kvlab.cache.cache import CompressedCache
from kvlab.methods.core.pipeline import Pipeline

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
