"""transformers' `generate` tells the cache how long its prompt is, as it may cut it into several passes."""

from __future__ import annotations

import copy
from types import MethodType
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from kvlab.cache.cache import CompressedCache
from kvlab.cache.chunked_prefill import chunk_with_full_window
from kvlab.common.errors import UserError

_PREFILL = "_prefill"  # where `generate` makes the prompt's passes; it alone knows prompt, cache and chunk size


def announce_prompts(model: PreTrainedModel) -> None:
    """From now on `generate` announces each first prompt to its cache (a second call does no harm).

    Without this method of transformers nothing is announced, and a second pass over a prompt is an error.
    """
    if _PREFILL not in vars(model) and hasattr(type(model), _PREFILL):
        setattr(model, _PREFILL, MethodType(_announcing, model))


def _announcing(
    model: PreTrainedModel,
    input_ids: Any,
    generation_config: GenerationConfig,
    model_kwargs: dict[str, Any],
    *rest: Any,
    **named: Any,
) -> Any:
    cache = model_kwargs.get("past_key_values")
    if isinstance(cache, CompressedCache) and cache.has_compressed and cache.settings.loses:
        embedded = model_kwargs.get("inputs_embeds")
        given = input_ids if embedded is None else embedded
        generation_config = _announced(cache, given.shape[1], model_kwargs.get("attention_mask"), generation_config)
    return getattr(type(model), _PREFILL)(model, input_ids, generation_config, model_kwargs, *rest, **named)


def _announced(cache: CompressedCache, tokens: int, mask: Any, config: GenerationConfig) -> GenerationConfig:
    """The config with a chunk size that gives the result of one pass. Raises UserError where there is none."""
    seen, chunk = cache.get_seq_length(), config.prefill_chunk_size
    if seen:
        whole = mask is not None and mask.shape[1] == tokens  # the text from its start, not only what is new
        if chunk and tokens - seen * whole > chunk:
            raise UserError(
                f"Only a first prompt can come in chunks, and this cache holds {seen:,} tokens: leave "
                "prefill_chunk_size out for a further turn."
            )
        return config
    if not cache.settings.prompt_tokens:
        cache.expect(tokens)
    if chunk and tokens > chunk:
        config = copy.copy(config)
        config.prefill_chunk_size = chunk_with_full_window(cache.settings.pipeline, tokens, chunk)
    return config
