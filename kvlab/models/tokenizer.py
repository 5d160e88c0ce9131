"""A model's tokenizer and context window without its weights."""

from __future__ import annotations

from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from kvlab.core.errors import UserError
from kvlab.models.sources import Source

ANY_WINDOW = 1 << 30  # for a model that states none


def load_tokenizer(
    name: str, revision: str | None = None, cache_dir: str | None = None
) -> tuple[PreTrainedTokenizerBase, int]:
    """The tokenizer and the model's context window; raises UserError if they are unavailable."""
    source = Source(name, revision, cache_dir)
    source.config_file()
    try:
        config = AutoConfig.from_pretrained(source.where, **source.options)
        tokenizer = AutoTokenizer.from_pretrained(source.where, **source.options)
    except (OSError, ValueError) as error:
        message = " ".join(str(error).split())[:160].rstrip(".")
        raise UserError(f"The tokenizer of {name!r} cannot be loaded ({message}).") from None
    return tokenizer, window_of(config)


def window_of(config: PreTrainedConfig) -> int:
    """The context window in tokens that a model's config names; unlimited if none."""
    text = config.get_text_config(decoder=True)
    return getattr(text, "max_position_embeddings", None) or ANY_WINDOW
