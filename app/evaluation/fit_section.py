"""Fitted files of methods that learn from the model: those available, and a button that queues a fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from app.base.text import plain
from app.base.widgets import private_switch
from app.navigation.selection import runs_root
from app.new_run.prompt_view import further_down
from app.queue.submit import queue_and_open
from app.session.url_state import in_url
from kvlab.common.formatting import model_title
from kvlab.core.errors import UserError
from kvlab.forms import measurement_job
from kvlab.forms.compare_form import PLACEMENTS
from kvlab.models.fitting.request import Fittable
from kvlab.planning.choices import MethodEntry

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
    for entry in chosen:
        if entry.name in measurement_job.LEARNS and model.strip():
            _box(model.strip(), entry)


def _box(model: str, entry: MethodEntry) -> None:
    method = measurement_job.LEARNS[entry.name]
    files = measurement_job.fitted_files(runs_root(), model, method)
    with st.expander(
        plain(f"{entry.title}: fit it to {model_title(model)}"), expanded=not files and not measurement_job.ships(model)
    ):
        st.caption(plain(f"{entry.title} learns {WHAT[method]}, from the texts shipped with kvlab."))
        if measurement_job.ships(model):
            st.caption("A file fitted to mini is shipped with kvlab and used by default.")
        for file in files:
            st.button(
                f"Use {plain(file.name)}",
                key=f"use-{entry.name}-{file.name}",
                icon=":material/check:",
                on_click=use,
                args=(entry, measurement_job.request_name(file)),
            )
        try:
            options = _options(entry.name, method)
            job = measurement_job.make_fit(model, method, options, private=private_switch(f"fit-{entry.name}.private"))
        except UserError as error:
            st.error(plain(str(error)))
            return
        if st.button("Fit it", key=f"fit-{entry.name}", icon=":material/model_training:"):
            queue_and_open("compare", lambda: job)


def _options(name: str, method: Fittable) -> dict[str, Any]:
    """The amount of text, and device and weights from the rest of the form."""
    options: dict[str, Any] = {
        field: further_down(field, next(iter(kinds))) for field, (_, kinds) in PLACEMENTS.items()
    }
    if method == "less":
        minutes = st.number_input("Processor minutes", 0.1, 600.0, 3.0, 0.5, **in_url(f"fit-{name}.minutes"))
        return options | {"minutes": minutes}
    left, right = st.columns(2)
    windows = left.number_input("Windows of text", 2, 4096, 64, **in_url(f"fit-{name}.windows"))
    length = right.number_input("Tokens of each", 256, 2**20, 1024, 256, **in_url(f"fit-{name}.length"))
    return options | {"windows": int(windows), "length": int(length)}


def use(entry: MethodEntry, file: str) -> None:
    """Callback: fill in the method's field for the file, whichever preset is chosen."""
    for start in (entry.name, *(f"{entry.name}.{preset}" for preset in entry.presets)):
        st.session_state[f"{start}.{measurement_job.setting(entry.name)}"] = file
