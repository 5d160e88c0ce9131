"""A user's own files as samples, by format name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from kvlab.errors import UserError
from kvlab.plugins.registry import Registry
from kvlab.tasks.loaders.gsm8k import load_gsm8k
from kvlab.tasks.loaders.jsonl import Loaded
from kvlab.tasks.loaders.longbench import load_longbench
from kvlab.tasks.loaders.plain_text import load_plain_text
from kvlab.tasks.loaders.ruler import load_ruler
from kvlab.tasks.loaders.summaries import load_summaries
from kvlab.tasks.loaders.table import load_table

__all__ = ["LOADERS", "Loaded", "load_file", "register_loader"]

LOADERS: Registry[Callable[..., Loaded]] = Registry(
    "loader",
    {
        "ruler": load_ruler,
        "longbench": load_longbench,
        "gsm8k": load_gsm8k,
        "summaries": load_summaries,
        "text": load_plain_text,
        "table": load_table,
    },
)

# Function decorator: `kvlab eval --data NAME=path` reads by (path, tokenizer, skip_malformed, **whole numbers).
register_loader = LOADERS.registering


def load_file(
    form: str, path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False, **options: int
) -> Loaded:
    """Return the samples of a file in the named format; raises UserError for an unknown format or a malformed line."""
    if form not in LOADERS:
        raise UserError(f"No loader is called '{form}': choose one of {', '.join(LOADERS)}.")
    return LOADERS[form](path, tokenizer, skip_malformed, **options)
