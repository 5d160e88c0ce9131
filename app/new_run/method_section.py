"""Methods with their settings and budgets, and where the weights go: the same in every form that runs something."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.base.segmented import one_of
from app.base.text import plain
from app.new_run.method_form import method_form
from kvlab.catalogue.methods import MethodEntry, methods
from kvlab.common.errors import UserError
from kvlab.forms import compare_form
from kvlab.requests.budget import Budget, unbounded_note

SETTINGS = ["default", "paper", "code"]


def method_section(prompt_tokens: int, budgets: str = "20%", label: str = "Compare") -> tuple[list[MethodEntry], str]:
    """The chosen methods and the budgets as typed, with what may surprise about them; `budgets` stand there first."""
    st.subheader("Methods")
    with st.spinner("Reading the list of methods"):
        registered = {entry.name: entry for entry in methods()}
    default = [name for name in compare_form.SAMPLE_METHODS if name in registered]
    names = st.multiselect(
        label,
        list(registered),
        default,
        lambda name: registered[name].title,
        key="methods",
        bind="query-params",
        wrap=True,
    )
    typed = st.text_input(
        "Budgets",
        budgets,
        key="budgets",
        bind="query-params",
        help="Fractions of the prompt (0.2 or 20%) or slots per KV head (128), several with commas between them",
    )
    try:
        for note in (
            compare_form.budget_notes(compare_form.parse_budgets(typed), prompt_tokens) if prompt_tokens else []
        ):
            st.info(plain(note))
        free = [registered[name].title for name in names if not registered[name].needs_budget and name != "full"]
        if told := unbounded_note(free, [Budget(amount) for amount in compare_form.parse_budgets(typed)]):
            st.info(plain(told))
    except UserError as error:
        if prompt_tokens:  # without a prompt the form says it, where it makes its request
            st.error(plain(str(error)))
    return [registered[name] for name in names], typed


def hyper_parameter_section(chosen: list[MethodEntry]) -> dict[str, dict[str, Any]]:
    """The values typed for each chosen method."""
    with_parameters = [entry for entry in chosen if entry.hyper_parameters]
    if not with_parameters:
        return {}
    usual = one_of(
        "Settings of all methods",
        SETTINGS,
        key="settings_of_all",
        help="kvlab's defaults, each paper's own, or each author's code. Each method can be changed below; one without "
        "published settings of that name keeps its defaults",
    )
    st.caption("Hyper-parameters; what you leave alone has the value of the settings chosen.")
    return {entry.name: method_form(entry, usual) for entry in with_parameters}


def placement_section() -> dict[str, Any]:
    """Where the weights go and in which form."""
    with st.expander("Device and weights", key="weights", bind="query-params"):
        return {
            name: st.selectbox(label, list(kinds), key=name, bind="query-params", format_func=kinds.__getitem__)
            for name, (label, kinds) in compare_form.PLACEMENTS.items()
        }
