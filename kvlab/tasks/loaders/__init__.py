"""Load users' files as samples, by format name."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from kvlab.core import UserError, quote_value
from kvlab.core.plugins.load import Registry
from kvlab.tasks.loaders.benchmarks import load_gsm8k, load_helm, load_ifeval, load_math, load_summaries
from kvlab.tasks.loaders.haystack import load_haystack
from kvlab.tasks.loaders.jsonl import Loaded
from kvlab.tasks.loaders.longbench import load_longbench, load_longbench2
from kvlab.tasks.loaders.plain_text import load_plain_text
from kvlab.tasks.loaders.prompts import load_prompts
from kvlab.tasks.loaders.reviewers import load_mt_bench, load_pairs, load_search
from kvlab.tasks.loaders.ruler import load_ruler
from kvlab.tasks.loaders.table import load_table

__all__ = ["LOADERS", "Loaded", "about", "load_file", "options_of", "register_loader"]

LOADERS: Registry[Callable[..., Loaded]] = Registry(
    "loader",
    {
        "ruler": load_ruler,
        "longbench": load_longbench,
        "longbench2": load_longbench2,
        "gsm8k": load_gsm8k,
        "math": load_math,
        "helm": load_helm,
        "summaries": load_summaries,
        "pairs": load_pairs,
        "mt_bench": load_mt_bench,
        "search": load_search,
        "ifeval": load_ifeval,
        "haystack": load_haystack,
        "text": load_plain_text,
        "table": load_table,
        "prompts": load_prompts,
    },
)

# Function decorator: `kvlab eval --data NAME=path` reads by (path, tokenizer, skip_malformed, **options).
register_loader = LOADERS.registering

BY_REQUEST = ("length", "lengths", "depths")  # set by --lengths and --depths


def about(form: str) -> str:
    """A format in one line: the first sentence of its function's docstring."""
    text = LOADERS[form].__doc__ or ""
    return " ".join(text.split("\n\n")[0].split()).rstrip(".")


def options_of(form: str) -> dict[str, Any]:
    """A format's own options with their defaults, without those that every file has."""
    given = list(inspect.signature(LOADERS[form]).parameters.values())[3:]
    return {one.name: one.default for one in given if one.name not in BY_REQUEST and one.kind is not one.VAR_KEYWORD}


def load_file(
    form: str, path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False, **options: Any
) -> Loaded:
    """Return the samples of a file in the named format.

    `options` are the format's own, and for generated answers `max_new_tokens`, `metric` and `temperature` in place of
    the format's. Raises UserError for an unknown format or option, or a malformed line.
    """
    if form not in LOADERS:
        raise LOADERS.unknown(form)
    known = options_of(form)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in inspect.signature(LOADERS[form]).parameters.values())
    of_format = {name: value for name, value in options.items() if name not in OF_SAMPLES}
    for name, value in of_format.items():
        if name not in (*known, *BY_REQUEST) and not takes_any:
            raise UserError(f"{form} files have no option '{name}': they take {', '.join([*known, *OF_SAMPLES])}.")
        default = None if name in BY_REQUEST else known.get(name)
        if isinstance(default, int) and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise UserError(f"{form}: {name}={quote_value(value)} cannot be used: give a whole number.")
        if isinstance(default, str) and not isinstance(value, str):
            raise UserError(f"{form}: {name}={quote_value(value)} cannot be used: give a name.")
    loaded = LOADERS[form](path, tokenizer, skip_malformed, **of_format)
    # Options of every file replace fields of its samples.
    changes: dict[str, object] = {}
    for name, value in options.items():
        if name in OF_SAMPLES:
            fits, words = OF_SAMPLES[name]
            if not fits(value):
                raise UserError(f"{name}={quote_value(value)} cannot be used: give {words}.")
            changes[name] = float(value) if name == "temperature" else value
    if changes and not all(sample.max_new_tokens for sample in loaded.samples):
        raise UserError(f"{form} files force a given text: {', '.join(changes)} applies to generated answers only.")
    samples = [sample.model_copy(update=changes) for sample in loaded.samples] if changes else loaded.samples
    return Loaded(samples, loaded.skipped, loaded.notes)


# Options of every file: (check, allowed values in words).
OF_SAMPLES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "max_new_tokens": (lambda value: type(value) is int and 1 <= value <= 100_000, "a whole number from 1"),
    "metric": (lambda value: isinstance(value, str), "the name of a metric"),
    "temperature": (lambda value: type(value) in (int, float) and 0 <= value <= 10, "a number from 0 to 10"),
}
