"""Hooks that tell a cache about its prompt: its length, because `generate` may split it, and its token ids.

What a cache cannot do is refused here, before the prompt is read: drafts of an assistant, and a prompt without a token
that is left to read.
"""

from __future__ import annotations

import copy
from types import MethodType
from typing import Any

from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import GenerationMode

from kvlab.core.attention.cache_argument import find_cache
from kvlab.core.cache.cache import CompressedCache
from kvlab.core.cache.chunked_prefill import chunk_with_full_window
from kvlab.core.cache.fan_out.fan_out_cache import caches_in
from kvlab.core.errors import UserError

_PREFILL = "_prefill"  # runs the prompt's passes; the only place where prompt, cache and chunk size are all available
_PREPARE = "_prepare_cache_for_generation"  # called once, before any pass, with the cache and the kind of decoding


def announce_prompts(model: PreTrainedModel) -> None:
    """Make `generate` announce each first prompt to its cache (idempotent).

    If transformers lacks this method nothing is announced, and a second pass over a prompt raises an error.
    """
    for name, hook in ((_PREFILL, _announcing), (_PREPARE, _refusing_drafts)):
        if name not in vars(model) and hasattr(type(model), name):
            setattr(model, name, MethodType(hook, model))


def _refusing_drafts(model: PreTrainedModel, config: GenerationConfig, model_kwargs: dict[str, Any], *rest: Any) -> Any:
    """Raise UserError if drafts are to be checked with a cache that cannot take back what was rejected."""
    cache = find_cache((), model_kwargs)
    if isinstance(cache, CompressedCache) and GenerationMode.ASSISTED_GENERATION in rest:
        raise UserError(
            "A kvlab cache does not support assisted decoding, since evicted and merged slots cannot be rolled back "
            "when a draft is rejected: call generate without assistant_model, prompt_lookup_num_tokens, "
            "assistant_early_exit and use_mtp (also in its generation_config), or without this cache."
        )
    return getattr(type(model), _PREPARE)(model, config, model_kwargs, *rest)


def _announcing(
    model: PreTrainedModel,
    input_ids: Any,
    generation_config: GenerationConfig,
    model_kwargs: dict[str, Any],
    *rest: Any,
    **named: Any,
) -> Any:
    cache = find_cache((), model_kwargs)
    if isinstance(cache, CompressedCache) and cache.compressed_layers():
        embedded = model_kwargs.get("inputs_embeds")
        mask = model_kwargs.get("attention_mask")
        given = (input_ids if embedded is None else embedded).shape[1]
        whole = getattr(generation_config, "_mask_length", given) if mask is None else mask.shape[1]
        tokens = given
        tokens_read = cache.get_seq_length()
        if (whole == given) and 0 < tokens <= tokens_read:
            way = "crop(-1) takes it back; " if tokens_read == tokens and cache.is_croppable else ""
            raise UserError(
                f"This cache has read {tokens_read:,} tokens and the text given to generate has {tokens:,}, so none is "
                "left to read, and generate would read the text again: let the cache read all but the last token of a "
                f"prompt, then give generate the whole prompt ({way}for a further turn give it the whole text so far)."
            )
        if cache.settings.is_lossy:
            generation_config = _announce(cache, given, mask, generation_config)
    return getattr(type(model), _PREFILL)(model, input_ids, generation_config, model_kwargs, *rest, **named)


def _announce(cache: CompressedCache, tokens: int, mask: Any, config: GenerationConfig) -> GenerationConfig:
    """Return the config with a chunk size that gives the result of one pass. Raises UserError if there is none."""
    tokens_read = cache.get_seq_length()
    chunk = config.prefill_chunk_size
    if tokens_read:
        whole = mask is not None and mask.shape[1] == tokens  # the whole text, not only the new part
        if chunk and tokens - tokens_read * whole > chunk:
            raise UserError(
                f"Only a first prompt can be split into chunks, and this cache has seen {tokens_read:,} tokens: do not "
                "set prefill_chunk_size for a further turn."
            )
        return config
    if not cache.settings.prompt_tokens:
        cache.expect(tokens)
    if chunk and tokens > chunk:
        config = copy.copy(config)
        config.prefill_chunk_size = chunk_with_full_window(cache.settings.pipeline, tokens, chunk)
    return config


_RECORDS = "_kvlab_records_token_ids"


def record_token_ids(model: PreTrainedModel) -> None:
    """Install a hook that reports token ids to caches whose method reads text (idempotent)."""
    if not getattr(model, _RECORDS, False):
        model.register_forward_pre_hook(_record, with_kwargs=True)
        setattr(model, _RECORDS, True)


def _record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    ids = args[0] if args else kwargs.get("input_ids")
    for cache in caches_in(find_cache(args, kwargs)):
        unsettled = not any(layer.prompt_settled for layer in cache.compressed_layers())
        if cache.settings.pipeline.reads_text and unsettled:
            if not isinstance(ids, Tensor):
                raise UserError("This method reads the prompt's text: pass input_ids to the model, not embeddings.")
            cache.settings.prompt_ids.append(ids)
