"""What a chosen method has to learn of the model first: the files there are, and a button that makes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from app.base import permission
from app.base.links import go
from app.base.private_switch import private_switch
from app.base.text import plain
from app.navigation.selection import runs_root
from app.new_run.prompt_source import further_down
from app.queue.submit import queued
from kvlab.catalogue.methods import MethodEntry, methods
from kvlab.common.errors import UserError
from kvlab.common.formatting import format_duration
from kvlab.fitting.request import FitJob, Fittable
from kvlab.forms import fit_form
from kvlab.forms.compare_form import PLACEMENTS

WHAT = {
    "kvzap": "networks that tell from a token what a second reading would say of it",
    "less": "feature maps that hold what was dropped",
    "duoattention": "which heads look far back",
}


def fit_section(model: str, chosen: Sequence[MethodEntry]) -> None:
    """A box for each chosen method that learns; nothing where none does."""
    for entry in chosen:
        if entry.name in fit_form.LEARNS and model.strip():
            _box(model.strip(), entry)


def _box(model: str, entry: MethodEntry) -> None:
    method = fit_form.LEARNS[entry.name]
    there = fit_form.fitted(runs_root(), model, method)
    with st.expander(plain(f"{entry.title}: fit it to {model}"), expanded=not there and not fit_form.ships(model)):
        st.caption(plain(f"{entry.title} learns {WHAT[method]}, from the texts that come with kvlab."))
        if fit_form.ships(model):
            st.caption("What it learned of mini comes with kvlab and is used unless another file is named.")
        for one in there:
            st.button(
                f"Use {plain(one.name)}",
                key=f"use-{entry.name}-{one.name}",
                icon=":material/check:",
                on_click=use,
                args=(entry, fit_form.named(one)),
            )
        try:
            options = _options(entry.name, method)
            job = fit_form.make_fit(model, method, options, private=private_switch(f"fit-{entry.name}.private"))
        except UserError as error:
            st.error(plain(str(error)))
            return
        st.caption(plain(told(fit_form.seconds(job, runs_root(), methods()))))
        if permission.button("Fit it", permission.why_not(), key=f"fit-{entry.name}", icon=":material/model_training:"):
            submit(job)


def _options(name: str, method: Fittable) -> dict[str, Any]:
    """How much is read, and the weights as the form has them further down."""
    asked: dict[str, Any] = {field: further_down(field, next(iter(kinds))) for field, (_, kinds) in PLACEMENTS.items()}
    if method == "less":
        minutes = st.number_input(
            "Processor minutes", 0.1, 600.0, 3.0, 0.5, key=f"fit-{name}.minutes", bind="query-params"
        )
        return asked | {"minutes": minutes}
    left, right = st.columns(2)
    with left:
        windows = st.number_input("Windows of text", 2, 4096, 64, key=f"fit-{name}.windows", bind="query-params")
    with right:
        length = st.number_input("Tokens of each", 256, 2**20, 1024, 256, key=f"fit-{name}.length", bind="query-params")
    return asked | {"windows": int(windows), "length": int(length)}


def told(seconds: tuple[float, bool] | None) -> str:
    """How long it takes, in words."""
    if seconds is None:
        return "How long it takes is not known, as nothing of this model has run here."
    spoken = format_duration(seconds[0], rough=True)
    return f"About {spoken} without loading." if seconds[1] else f"At most about {spoken}; none was made here yet."


def use(entry: MethodEntry, file: str) -> None:
    """The method's field for the file holds it, as if it had been typed, under whichever settings it starts from."""
    for start in (entry.name, *(f"{entry.name}.{preset}" for preset in entry.presets)):
        st.session_state[f"{start}.{fit_form.setting(entry.name)}"] = file


def submit(job: FitJob) -> None:
    """Queue it and go to its progress."""
    job_id = queued(lambda: job)
    if job_id is not None:
        go("new_run", job=job_id)
