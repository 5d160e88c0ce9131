"""Create a cache for a model and a method."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import GenerationMode

from kvlab.core.attention import ATTENTION_NAME
from kvlab.core.attention.inline_attention import INLINE, find_cache
from kvlab.core.attention.layer_handoff import watch_hidden_states
from kvlab.core.attention.queries import num_key_value_heads
from kvlab.core.budget import UNLIMITED, Budget
from kvlab.core.cache.cache import CompressedCache
from kvlab.core.cache.chunked_prefill import chunk_with_full_window
from kvlab.core.cache.fan_out_cache import caches_in
from kvlab.core.cache.rotary import changing_rotary, find_rotary, unrotated_layers
from kvlab.core.cache.second_pass import install_second_pass, second_pass_state
from kvlab.core.cache.settings import LayerSettings, Observer, shape_of
from kvlab.core.choice import MOST_NEW_TOKENS
from kvlab.core.contract import Pipeline, optional
from kvlab.core.errors import UserError
from kvlab.core.families import ATTACHMENT, SUPPORTED, Attachment, check_layers, switch_attention
from kvlab.core.fitted.kinds import with_feature_maps, with_profile, with_scores
from kvlab.core.methods import Method, make_method
from kvlab.core.stores import store_under
from kvlab.core.validation import quote_value, whole_number

# Hooks that tell a cache about its prompt: its length, because `generate` may split it, and its token ids.
#
# What a cache cannot do is refused here, before the prompt is read: drafts of an assistant, and a prompt without a
# token that is left to read.

_PREFILL = "_prefill"  # runs the prompt's passes; the only place where prompt, cache and chunk size are all available
_RECORDS = "_kvlab_records_token_ids"
_PREPARE = "_prepare_cache_for_generation"  # called once, before any pass, with the cache and the kind of decoding


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
        tokens = (input_ids if embedded is None else embedded).shape[1]
        length = getattr(generation_config, "_mask_length", tokens) if mask is None else mask.shape[1]
        tokens_read = cache.get_seq_length()
        if length == tokens and 0 < tokens <= tokens_read:
            way = "crop(-1) takes it back; " if tokens_read == tokens and cache.is_croppable else ""
            raise UserError(
                f"This cache has read {tokens_read:,} tokens and the text given to generate has {tokens:,}, so none is "
                "left to read, and generate would read the text again: let the cache read all but the last token of a "
                f"prompt, then give generate the whole prompt ({way}for a further turn give it the whole text so far)."
            )
        chunk = generation_config.prefill_chunk_size
        if cache.settings.is_lossy and tokens_read:
            new = tokens - tokens_read * (mask is not None and length == tokens)  # without the old part of a whole text
            if chunk and new > chunk:
                raise UserError(
                    f"Only a first prompt can be split into chunks, and this cache has seen {tokens_read:,} tokens: do "
                    "not set prefill_chunk_size for a further turn."
                )
        elif cache.settings.is_lossy:
            if not cache.settings.prompt_tokens:
                cache.expect(tokens)
            if chunk and tokens > chunk:  # a size that gives the result of one pass
                generation_config = copy.copy(generation_config)
                generation_config.prefill_chunk_size = chunk_with_full_window(cache.settings.pipeline, tokens, chunk)
    return getattr(type(model), _PREFILL)(model, input_ids, generation_config, model_kwargs, *rest, **named)


def _record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    ids = args[0] if args else kwargs.get("input_ids")
    for cache in caches_in(find_cache(args, kwargs)):
        unsettled = not any(layer.prompt_compressed for layer in cache.compressed_layers())
        if cache.settings.pipeline.reads_text and unsettled:
            if not isinstance(ids, Tensor):
                raise UserError("This method reads the prompt's text: pass input_ids to the model, not embeddings.")
            cache.settings.prompt_ids.append(ids)


def make_cache(
    model: Any,
    method: str | Method,
    budget: float | int | str = 0.2,
    *,
    compress_every: int = 1,
    seed: int = 0,
    observer: Observer | None = None,
    timed: bool = False,
    **hyper_parameters: Any,
) -> CompressedCache:
    """Create a cache for one batch of sequences, to be passed as `past_key_values`.

    Args:
        model: from `kvlab.load_model`, or any transformers model of a decoder, as `from_pretrained` gives it: with a
            device map, an adapter, quantised weights. Its attention is switched as `attach` does.
        method: a name with `hyper_parameters`, or a `Method`.
        budget: a float in (0, 1] is a fraction of the first prompt (1.0 keeps everything), an int is slots per KV
            head, a string such as `10%B` or `64MiB` is bytes.
        compress_every: decode steps between decisions; the slack is taken from inside the budget.
        seed: of methods that draw at random.
        observer: gets every pass and decision, as a recorder does.
        timed: measure the seconds of decisions and second passes (on a GPU each waits for the device).

    Raises UserError for an invalid argument, or as `attach` for a model that cannot run kvlab's attention.
    """
    if not isinstance(method, Method):
        method = make_method(method, **hyper_parameters)
    elif hyper_parameters:
        raise UserError("Pass hyper-parameters with a method's name, or a Method without them.")
    language_model = _language_model(model)
    config = language_model.config.get_text_config(decoder=True)
    if config._attn_implementation != ATTENTION_NAME:
        before = config._attn_implementation
        attach(language_model)
        warnings.warn(
            f"This model now runs kvlab's attention instead of {before!r}, with other caches too; kvlab.detach(model) "
            "switches it back, and `with kvlab.attach(model):` does so at the end of the block.",
            stacklevel=2,
        )
    whole_number(compress_every, "compress_every", 1, MOST_NEW_TOKENS)
    whole_number(seed, "The seed", 0, 2**63 - 1)
    amount = Budget.parse(budget) if isinstance(budget, str) else Budget(budget)
    if not method.needs_budget:  # then no budget chooses its store either
        amount = Budget(UNLIMITED)
    tokenizer = getattr(model, "tokenizer", None)
    pipeline = _fitted_pipeline(method, language_model, getattr(model, "name", ""), tokenizer)
    if pipeline.score.needs_hidden_states:
        watch_hidden_states(language_model)
    settings = LayerSettings(
        pipeline=pipeline,
        compress_every=compress_every,
        seed=seed,
        observer=observer,
        timed=timed,
        sparse_attention=method.sparse_attention,
        budget=amount,
        store=store_under(method.store, amount),
        compresses=method.family != "reference" and not (method.needs_budget and amount.keeps_all),
        num_layers=config.num_hidden_layers,
        group=config.num_attention_heads // num_key_value_heads(config),
        rotary=find_rotary(language_model),
        changing_rotary=changing_rotary(language_model),
        unrotated=unrotated_layers(language_model),
        shape=shape_of(config),
    )
    if pipeline.second_pass is not None and settings.compresses:
        install_second_pass(language_model)
        settings.second_pass = second_pass_state(pipeline.second_pass, language_model, tokenizer)
    # `generate` announces each first prompt to its cache, and passes report token ids to a method that reads them.
    # Where transformers lacks a hooked method nothing is announced, and a second pass over a prompt raises an error.
    for name, hook in ((_PREFILL, _announcing), (_PREPARE, _refusing_drafts)):
        if name not in vars(language_model) and hasattr(type(language_model), name):
            setattr(language_model, name, MethodType(hook, language_model))
    if pipeline.reads_text and settings.compresses and not getattr(language_model, _RECORDS, False):
        language_model.register_forward_pre_hook(_record, with_kwargs=True)
        setattr(language_model, _RECORDS, True)
    return CompressedCache(config, settings)


def attach(model: Any) -> Attachment:
    """Switch a transformers model to kvlab's attention; use the result in a `with` block, or call its `detach`.

    A model of a family that no test covers is run on a few tokens before and after, with plain transformers and with
    a full cache of kvlab.

    Raises UserError, with the reason and the model as it was: its attention is written inline instead of calling
    transformers' attention interface, a layer keeps something other than keys and values per head, or its logits
    differ.
    """
    language_model = _language_model(model)
    config = language_model.config.get_text_config(decoder=True)
    family = config.model_type
    check_layers(language_model.config)
    if family not in INLINE and not language_model._can_set_attn_implementation():
        raise UserError(
            f"Models of family {family!r} cannot run kvlab's attention: their layers compute it inline, not through "
            "transformers' attention interface."
        )
    if family in SUPPORTED:
        return switch_attention(language_model)
    with _as_refusal(family, "plain transformers does not run this one token by token with a cache"):
        expected = _few_logits(language_model, None)
    attachment = switch_attention(language_model)
    try:
        with _as_refusal(family, "this one does not run with a full cache of kvlab"):
            found = _few_logits(language_model, make_cache(language_model, "full", 1.0))
        difference = float((found - expected).abs().max())
        if difference > TOLERANCE * float(expected.abs().max()):
            raise UserError(
                f"Models of family {family!r} are not supported: on a few tokens a full cache of kvlab gives logits "
                f"that differ by {difference:.2g} from those of plain transformers."
            )
    except BaseException:
        attachment.detach()
        raise
    return attachment


@contextmanager
def _as_refusal(family: str, reason: str) -> Iterator[None]:
    """Turn an error of a model's code into a sentence; running out of memory stays what it is."""
    try:
        yield
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"Models of family {family!r} are not supported: {reason} ({message}).") from error


TOLERANCE = 2**-6  # of the largest logit: bfloat16 rounds each of a few dozen layers to 2**-9


def _few_logits(model: Any, cache: CompressedCache | None) -> Tensor:
    """Logits (2, 4, vocabulary) in float32 of a pass over twelve tokens and three steps; the second row is padded."""
    tokens = torch.arange(30, device=model.get_input_embeddings().weight.device).view(2, 15)
    ids = tokens % model.config.get_text_config(decoder=True).vocab_size
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    logits = []
    with torch.inference_mode():
        for first, last in ((0, 12), (12, 13), (13, 14), (14, 15)):
            output = model(ids[:, first:last], attention_mask=mask[:, :last], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            logits.append(output.logits[:, -1])
    return torch.stack(logits, dim=1).float()


def detach(model: Any) -> None:
    """Give a model back the attention that it had before `attach` or `make_cache`; others are left as they are."""
    attachment = vars(_language_model(model)).get(ATTACHMENT)
    if attachment is not None:
        attachment.detach()


def _language_model(model: Any) -> Any:
    """The transformers model of what `load_model` returns, or the model itself.

    Of a PEFT model it is the one inside, whose `generate` bypasses the wrapper. Raises UserError for prompt-learning
    adapters, which put their own states before the prompt.
    """
    if not hasattr(model, "config") and not hasattr(model, "tokenizer"):
        raise UserError(
            f"Cannot create a cache for {quote_value(model)}: pass a transformers model, or what "
            "kvlab.load_model(name) returns."
        )
    model = getattr(model, "model", model) if hasattr(model, "tokenizer") else model
    if not hasattr(model, "peft_config") or not hasattr(model, "get_base_model"):
        return model
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise UserError(
            "This adapter puts learned states before the prompt, which a compressed cache does not support: use an "
            "adapter of weights such as LoRA, or the model without the adapter."
        )
    return model.get_base_model()


def _fitted_pipeline(method: Method, model: Any, name: str, tokenizer: Any) -> Pipeline:
    """The method's pipeline with what was fitted to the model called `name`, and delimiters of its tokenizer.

    Raises UserError for sparse attention of a method whose attention has a part that no sparse attention can leave out.
    """
    pipeline = method.paged_pipeline()
    try:
        for with_fitted in (with_feature_maps, with_profile, with_scores):
            pipeline = with_fitted(pipeline, model, name)
    except UserError as error:
        if not hasattr(model, "peft_config"):
            raise
        raise UserError(
            "This method reads a file fitted to a model's weights, which an adapter changes: merge the adapter "
            "(merge_and_unload().save_pretrained(FOLDER), the tokenizer too), load FOLDER with kvlab.load_model, and "
            "fit the method to it."
        ) from error
    if method.sparse_attention is not None and pipeline.state_beside_slots is not None:
        raise UserError(
            f"{method.name} cannot be combined with read={method.sparse_attention.name}: its queries also attend to a "
            "low-rank state of what was evicted, which is no slot to choose. Leave out read, or use another method."
        )
    configure = optional(pipeline.settle, "with_tokenizer")
    if configure is not None and tokenizer is not None:  # a settler that needs chunk delimiters
        pipeline = replace(pipeline, settle=configure(tokenizer))
    return pipeline
