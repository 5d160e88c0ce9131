"""The sections of forms for methods, budgets, hyper-parameters, and device and number format of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.base.text import plain
from app.base.widgets import one_of
from app.new_run.method_form import method_form
from app.session.url_state import in_url, params
from kvlab.core.budget import Budget, unbounded_note
from kvlab.core.errors import UserError
from kvlab.forms import compare_form
from kvlab.planning.methods import MethodEntry, methods

SETTINGS = ["default", "paper", "code"]


def method_section(
    prompt_tokens: int,
    budgets: str = "20%",
    label: str = "Compare",
    row: DeltaGenerator | None = None,
    usual: Sequence[str] = compare_form.SAMPLE_METHODS,
) -> tuple[list[MethodEntry], str]:
    """The chosen methods and the typed budgets, with notes about them; `usual` and `budgets` are the defaults.

    The field of the budgets is in `row`, if there is one. The form that builds the request reports invalid budgets.
    """
    with st.spinner("Reading the list of methods"):
        registered = {entry.name: entry for entry in methods()}
    default = [name for name in usual if name in registered]
    names = st.multiselect(
        label, list(registered), default, lambda name: registered[name].title, **in_url("methods"), wrap=True
    )
    with row or st.container():
        typed = st.text_input(
            "Budgets",
            budgets,
            **in_url("budgets"),
            help="Fractions of the prompt (0.2 or 20%) or slots per KV head (128), separated by commas",
        )
    with suppress(UserError):
        for note in (
            compare_form.budget_notes(compare_form.parse_budgets(typed), prompt_tokens) if prompt_tokens else []
        ):
            st.info(plain(note))
        free = [registered[name].title for name in names if not registered[name].needs_budget and name != "full"]
        if note := unbounded_note(free, [Budget(amount) for amount in compare_form.parse_budgets(typed)]):
            st.info(plain(note))
    return [registered[name] for name in names], typed


def hyper_parameter_section(chosen: list[MethodEntry]) -> dict[str, dict[str, Any]]:
    """A drawer with the hyper-parameters of each chosen method."""
    with_parameters = [entry for entry in chosen if entry.hyper_parameters]
    if not with_parameters:
        return {}
    linked = any(name.startswith("form.") for name in params())  # a link to a method's open form
    with st.expander("Settings of the methods", expanded=linked):
        usual = one_of(
            "Settings of all methods",
            SETTINGS,
            key="settings_of_all",
            help="kvlab's defaults, the values in each paper, or those in its authors' code. Methods without such "
            "values keep their defaults; each can be changed below",
        )
        st.caption("Hyper-parameters; fields that you do not change have the values of the chosen settings.")
        return {entry.name: method_form(entry, usual) for entry in with_parameters}


def placement_section() -> dict[str, Any]:
    """Device and number format of the weights."""
    with st.expander("Device and weights", **in_url("weights")):
        return {
            name: st.selectbox(label, list(kinds), **in_url(name), format_func=kinds.__getitem__)
            for name, (label, kinds) in compare_form.PLACEMENTS.items()
        }
