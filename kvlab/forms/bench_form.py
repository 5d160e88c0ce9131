"""Build benchmark jobs from the form of the page Speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from kvlab.bench.request import BenchJob, make_request
from kvlab.core.errors import UserError
from kvlab.forms import compare_form
from kvlab.forms.eval_form import numbers
from kvlab.models.info.names import check_model
from kvlab.planning.methods import MethodEntry

# Modes of the form and their labels.
KINDS = {
    "decode": "Decode rate",
    "prefill": "Prefill",
    "memory": "Memory",
}


def make_job(
    *,
    name: str,
    model: str,
    modes: Sequence[str],
    chosen: Sequence[MethodEntry],
    typed: Mapping[str, Mapping[str, Any]],
    budgets: str,
    contexts: str,
    batches: str,
    private: bool = False,
    **options: Any,
) -> BenchJob:
    """The form's job, one request per mode; `options` are further fields of `BenchRequest`.

    Raises UserError for the first invalid value.
    """
    if not modes:
        raise UserError("There is nothing to measure: choose at least one figure.")
    lists = {"contexts": numbers(contexts, "Tokens in the cache", int), "batches": numbers(batches, "Batches", int)}
    if not all(lists.values()):
        raise UserError("Give at least one number of tokens in the cache, and one batch.")
    fields: dict[str, Any] = {
        "model": model.strip() if model.strip().startswith("shape:") else check_model(model),
        "choices": compare_form.choices_of_form(chosen, typed, budgets),
        **lists,
    }
    requests = tuple(make_request(mode=mode, **fields, **options) for mode in modes)
    figures = ", ".join(KINDS.get(mode, mode).lower() for mode in modes)
    try:
        title = f"Speed {name.strip()}: {figures}"
        return BenchJob(name=name.strip(), requests=requests, title=title, private=private)
    except ValidationError:
        raise UserError(
            f"Results cannot be called {name[:60]!r}: give letters, digits, dots, dashes and underscores only."
        ) from None
