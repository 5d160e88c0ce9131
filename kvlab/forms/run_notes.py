"""Warnings about the methods of a form, before the start: what would fail, or be no more than a local window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from kvlab.common.formatting import model_title
from kvlab.core.errors import UserError
from kvlab.forms import compare_form, fit_form
from kvlab.planning.method_footprints import observation_window, window_notes
from kvlab.planning.methods import MethodEntry


def run_notes(
    tokens: int,
    model: str,
    chosen: Sequence[MethodEntry],
    budgets: str,
    typed: Mapping[str, Mapping[str, Any]],
    chunk: int | None = None,
) -> list[str]:
    """One sentence for each method that will fail with this model or prefill `chunk`, or whose window is its budget.

    `tokens` are those of the prompt. Empty while the form is incomplete or invalid.
    """
    try:
        choices = compare_form.choices_of_form(chosen, typed, budgets)
        notes = window_notes(choices, tokens)
        windows = {choice.method: observation_window(choice) for choice in choices}
    except (UserError, ValidationError):
        return []
    changed = {choice.method: choice.hyper_parameters for choice in choices}
    for entry in chosen:
        unfitted = entry.name in fit_form.LEARNS and not fit_form.ships(model)
        if unfitted and fit_form.setting(entry.name) not in changed[entry.name]:
            notes.append(
                f"{entry.title} has no file fitted to {model_title(model)}, so its run fails unless the weights are "
                "mini's: fit it, or leave it out."
            )
        window = windows[entry.name]
        if chunk is not None and chunk < min(window, tokens):
            notes.append(
                f"{entry.title} needs the last {window} tokens of the prompt in one pass: use a prefill chunk of at "
                f"least {window}."
            )
    return notes
