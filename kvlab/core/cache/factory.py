"""Create a cache for a model and a method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kvlab.core.attention import ATTENTION_NAME
from kvlab.core.attention.layer_handoff import decoder_layers, watch_hidden_states, watch_residual_stream
from kvlab.core.attention.low_rank_state import keeps_state
from kvlab.core.attention.queries import num_key_value_heads
from kvlab.core.budget import UNLIMITED, Budget
from kvlab.core.cache.cache import CompressedCache
from kvlab.core.cache.kernels.cpu import precompile
from kvlab.core.cache.prompt_hooks import announce_prompts, record_token_ids
from kvlab.core.cache.residual_stream import ResidualStream, depths_of
from kvlab.core.cache.rotary import changing_rotary, find_rotary, unrotated_layers
from kvlab.core.cache.second_pass import install_second_pass, second_pass_state
from kvlab.core.cache.settings import LayerSettings, Observer, shape_of
from kvlab.core.cache.token_pruning import TokenPruning, install_token_pruning
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.reading import Reading
from kvlab.core.errors import UserError
from kvlab.core.fitted.feature_maps import with_feature_maps
from kvlab.core.fitted.profiles import with_profile
from kvlab.core.fitted.query_statistics import with_query_statistics
from kvlab.core.fitted.score_heads import with_score_heads
from kvlab.core.methods import Method, make_method
from kvlab.core.stores import store_under
from kvlab.core.validation import quote_value, whole_number
from kvlab.requests.compare import MOST_NEW_TOKENS


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
        model: from `kvlab.load_model`, or a transformers model that runs kvlab's attention.
        method: a name with `hyper_parameters`, or a `Method`.
        budget: a float in (0, 1] is a fraction of the first prompt (1.0 keeps everything), an int is slots per KV
            head, a string such as `10%B` or `64MiB` is bytes.
        compress_every: decode steps between decisions; the slack is taken from inside the budget.

    Raises UserError for an invalid argument or a model that does not run kvlab's attention.
    """
    if not isinstance(method, Method):
        method = make_method(method, **hyper_parameters)
    elif hyper_parameters:
        raise UserError("Pass hyper-parameters with a method's name, or a Method without them.")
    if not hasattr(model, "config") and not hasattr(model, "tokenizer"):
        raise UserError(f"Cannot create a cache for {quote_value(model)}: pass what kvlab.load_model(name) returns.")
    language_model = unwrap_adapter(getattr(model, "model", model) if hasattr(model, "tokenizer") else model)
    config = language_model.config.get_text_config(decoder=True)
    if config._attn_implementation != ATTENTION_NAME:
        raise UserError("This model does not run kvlab's attention: load it with kvlab.load_model(name).")
    whole_number(compress_every, "compress_every", 1, MOST_NEW_TOKENS)
    whole_number(seed, "The seed", 0, 2**63 - 1)
    amount = Budget.parse(budget) if isinstance(budget, str) else Budget(budget)
    if not method.needs_budget:  # then no budget chooses its store either
        amount = Budget(UNLIMITED)
    pipeline = method.paged_pipeline()
    with explain_adapter_mismatch(language_model):
        for with_fitted in (with_feature_maps, with_profile, with_score_heads, with_query_statistics):
            pipeline = with_fitted(pipeline, language_model, getattr(model, "name", ""))
    tokenizer, configure = getattr(model, "tokenizer", None), pipeline.can.settle.with_tokenizer
    if configure is not None and tokenizer is not None:  # a settler that needs chunk delimiters
        pipeline = replace(pipeline, settle=configure(tokenizer))
    if pipeline.score.needs_hidden_states:
        watch_hidden_states(language_model)
    if pipeline.saves_prefill:
        install_token_pruning(language_model)
    settings = LayerSettings(
        pipeline=pipeline, compress_every=compress_every, seed=seed, observer=observer, timed=timed,
        reading=composed_reading(method, pipeline),
        budget=amount, store=store_under(method.store, amount),
        compresses=method.family != "reference" and not (method.needs_budget and amount.keeps_all),
        num_layers=config.num_hidden_layers, group=config.num_attention_heads // num_key_value_heads(config),
        rotary=find_rotary(language_model), changing_rotary=changing_rotary(language_model),
        unrotated=unrotated_layers(language_model), shape=shape_of(config),
        token_pruning=TokenPruning() if pipeline.saves_prefill else None,
    )  # fmt: skip
    if pipeline.rehearsal is not None and settings.compresses:
        install_second_pass(language_model)
        settings.second_pass = second_pass_state(pipeline.rehearsal, language_model, tokenizer)
    if pipeline.in_place is not None and settings.compresses and language_model.device.type == "cpu":
        precompile(pipeline, language_model.dtype)
    if pipeline.reads_text and settings.compresses:
        record_token_ids(language_model)
    announce_prompts(language_model)
    cache = CompressedCache(config, settings)
    if (rule := pipeline.can.score.residual_rule) is not None and settings.compresses:
        depths = depths_of(rule, len(decoder_layers(language_model)), cache.compressed_layers()[-1].layer_idx)
        watch_residual_stream(language_model, depths)
        text = language_model.config.get_text_config(decoder=True)
        width = text.hidden_size * getattr(text, "altup_num_inputs", 1)  # Gemma 3n's parallel streams
        settings.stream = ResidualStream(rule, depths, width * language_model.dtype.itemsize)
    return cache


def composed_reading(method: Method, pipeline: Pipeline) -> Reading | None:
    """The method's reading; raises UserError if its attention has a part that no reading can leave out."""
    reading = method.reading
    if reading is not None and keeps_state(pipeline):
        raise UserError(
            f"{method.name} cannot be combined with read={reading.name}: its queries also attend to a low-rank state "
            "of what was evicted, which is no slot to choose. Leave out read, or use another method."
        )
    return reading


def unwrap_adapter(model: Any) -> Any:
    """Return the transformers model inside a PEFT model, whose `generate` bypasses the wrapper; other models unchanged.

    Raises UserError for prompt-learning adapters, which put their own states before the prompt.
    """
    if not hasattr(model, "peft_config") or not hasattr(model, "get_base_model"):
        return model
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise UserError(
            "This adapter puts learned states before the prompt, which a compressed cache does not support: use an "
            "adapter of weights such as LoRA, or the model without the adapter."
        )
    return model.get_base_model()


@contextmanager
def explain_adapter_mismatch(model: Any) -> Iterator[None]:
    """Explain that an adapter must be merged when a fitted file does not match the weights."""
    try:
        yield
    except UserError as error:
        if not hasattr(model, "peft_config"):
            raise
        raise UserError(
            "This method reads a file fitted to a model's weights, which an adapter changes: merge the adapter "
            "(merge_and_unload().save_pretrained(FOLDER), the tokenizer too), load FOLDER with kvlab.load_model, and "
            "fit the method to it."
        ) from error
