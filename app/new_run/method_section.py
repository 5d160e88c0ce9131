"""The sections of forms for methods, budgets, hyper-parameters, what methods have learnt, and placement."""

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.base.text import plain
from app.base.widgets import one_of, private_switch
from app.navigation.selection import runs_root
from app.new_run.prompt_view import further_down
from app.queue.job_panel import queue_and_open
from app.session.url_state import in_url, params
from kvlab.common.formatting import model_title
from kvlab.core import Budget, UserError, unbounded_note
from kvlab.forms import compare_form, measurement_job
from kvlab.planning.choices import MethodEntry, methods
from kvlab.planning.parameters import DEFAULT, PRESET, Parameter, parameters

OF_PAGES = ("page_rule", "page_heads")
LEFT_TO_METHOD = "chosen by the method"


def method_form(entry: MethodEntry, usual: str = DEFAULT) -> dict[str, Any]:
    """The preset and the hyper-parameters of one method, as typed, not checked (`kvlab.planning.parameters`).

    `usual` is the preset to start from, if the method has it.
    """
    with st.expander(plain(entry.title) or entry.name, **in_url(f"form.{entry.name}")):
        source = f" [Paper]({entry.paper})" if entry.paper else ""
        st.caption(plain(entry.summary) + source)
        if entry.origin:
            st.caption(plain(f"From the plug-in {entry.origin}."))
        preset = DEFAULT
        if entry.presets:
            names = [DEFAULT, *entry.presets]
            start = usual if usual in names else DEFAULT
            preset = str(one_of("Settings", names, start, key=f"{entry.name}.{PRESET}.{usual}"))
        if preset in entry.presets:
            about = entry.presets[preset]
            st.caption(plain(f"{about.about[:1].upper()}{about.about[1:]}. {about.beyond}"))
        fields = parameters(entry, preset)
        if not fields:
            st.caption("This method has no settings.")
        columns = st.columns(2)
        values: dict[str, Any] = {PRESET: preset}
        for parameter in fields:
            if parameter.name in OF_PAGES and values.get("page", 1) == 1:
                continue  # one token is no page
            with columns[(len(values) - 1) % 2]:
                values[parameter.name] = _widget(entry.name, parameter, preset, entry.reasons.get(parameter.name, ""))
        return values


def _widget(method: str, parameter: Parameter, preset: str, reason: str) -> Any:
    # Each preset has its own widgets, which start from its values.
    key = f"{method}.{parameter.name}" if preset == DEFAULT else f"{method}.{preset}.{parameter.name}"
    label = plain(parameter.name.replace("_", " "))
    if parameter.source:
        source = plain(f"{parameter.default} by {parameter.source}")
    else:
        source = plain(f"Default {parameter.default}" + (f": {reason}" if reason else ""))
    described = plain(parameter.description)
    described = described[:1].upper() + described[1:]
    described += f" ({parameter.limits})" if parameter.limits else ""
    text = ". ".join(part for part in (described, source) if part)
    if parameter.optional and st.checkbox(
        f"{label}: {LEFT_TO_METHOD}", parameter.default is None, **in_url(f"{key}.none")
    ):
        return None
    if parameter.kind == "choice":
        index = parameter.options.index(parameter.default) if parameter.default in parameter.options else 0
        return st.selectbox(label, parameter.options, index, help=text, **in_url(key))
    if parameter.kind == "switch":
        return st.toggle(label, bool(parameter.default), help=text, **in_url(key))
    if parameter.kind in ("integer", "number"):
        cast = int if parameter.kind == "integer" else float
        low = None if parameter.minimum is None else cast(parameter.minimum)
        high = None if parameter.maximum is None else cast(parameter.maximum)
        start = parameter.default if parameter.default is not None else (low or 0)
        step, shape = (1, "%d") if cast is int else (0.05, "%g")
        return st.number_input(label, low, high, cast(start), step, format=shape, help=text, **in_url(key))
    default = parameter.default if parameter.kind == "text" else json.dumps(parameter.default)
    return st.text_input(label, default or "", help=text, **in_url(key))


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
    with st.expander("Device and weights", **in_url("placement_open")):
        return {
            name: st.selectbox(label, list(kinds), **in_url(name), format_func=kinds.__getitem__)
            for name, (label, kinds) in compare_form.PLACEMENTS.items()
        }


WHAT = {
    "kvzap": "networks that predict the scores of a second reading",
    "fast-kvzip": "gates that predict the scores of a second reading",
    "lukv": "how many tokens of each head later text needs",
    "less": "feature maps that approximate dropped tokens",
    "duoattention": "which heads attend to distant tokens",
    "triattention": "the mean of each head's queries",
    "qfilter": "the main direction of each head's queries",
}


def fit_section(model: str, chosen: Sequence[MethodEntry]) -> None:
    """A box for each chosen method that can be fitted."""
    model = model.strip()
    for entry in chosen if model else ():
        if entry.name not in measurement_job.LEARNS:
            continue
        method = measurement_job.LEARNS[entry.name]
        files = measurement_job.fitted_files(runs_root(), model, method)
        ships = measurement_job.ships(model)
        title = plain(f"{entry.title}: fit it to {model_title(model)}")
        with st.expander(title, expanded=not files and not ships):
            st.caption(plain(f"{entry.title} learns {WHAT[method]}, from the texts shipped with kvlab."))
            if ships:
                st.caption("A file fitted to mini is shipped with kvlab and used by default.")
            for file in files:
                st.button(
                    f"Use {plain(file.name)}",
                    key=f"use-{entry.name}-{file.name}",
                    icon=":material/check:",
                    on_click=use,
                    args=(entry, file.asked),
                )
            try:
                # The amount of text, and device and weights from the rest of the form.
                placements = compare_form.PLACEMENTS.items()
                options: dict[str, Any] = {
                    field: further_down(field, next(iter(kinds))) for field, (_, kinds) in placements
                }
                prefix = f"fit-{entry.name}"
                if method == "less":
                    options["minutes"] = st.number_input(
                        "Processor minutes", 0.1, 600.0, 3.0, 0.5, **in_url(f"{prefix}.minutes")
                    )
                else:
                    left, right = st.columns(2)
                    windows = left.number_input("Windows of text", 2, 4096, 64, **in_url(f"{prefix}.windows"))
                    length = right.number_input("Tokens of each", 256, 2**20, 1024, 256, **in_url(f"{prefix}.length"))
                    options |= {"windows": int(windows), "length": int(length)}
                private = private_switch(f"{prefix}.private")
                build = partial(measurement_job.make_fit, model, method, options, private=private)
                build()  # an error comes before the button
            except UserError as error:
                st.error(plain(str(error)))
                continue
            if st.button("Fit it", key=f"fit-{entry.name}", icon=":material/model_training:"):
                queue_and_open("compare", build)


def use(entry: MethodEntry, file: str) -> None:
    """Callback: fill in the method's field for the file, whichever preset is chosen."""
    for start in (entry.name, *(f"{entry.name}.{preset}" for preset in entry.presets)):
        st.session_state[f"{start}.{measurement_job.setting(entry.name)}"] = file
