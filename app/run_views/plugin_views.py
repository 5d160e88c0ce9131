"""Pages for the views of plug-ins."""

from __future__ import annotations

from functools import partial

import streamlit as st

from app.base.text import plain
from app.figures.view import show_view
from app.navigation.selection import current_comparison, current_run
from app.run_views import page, view
from kvlab.core.plugins.origin import KVLAB
from kvlab.views.base.view import VIEWS, View


def view_pages() -> list[st.Page]:
    """A page for every view of a run or comparison that a plug-in registered."""
    return [
        st.Page(partial(_page, found), title=found.title, icon=":material/extension:", url_path=f"view_{found.name}")
        for found in VIEWS.values()
        if found.kind != "rows" and VIEWS.origin(found.name) != KVLAB
    ]


def _page(found: View) -> None:
    page.heading(plain(found.title), found.description)
    st.caption(plain(f"From the plug-in {VIEWS.origin(found.name).name}."))
    subject = current_run() if found.kind == "run" else current_comparison()
    if not subject:
        return
    if isinstance(subject, list):
        _draw(found, subject)
        return
    page.explain_status(subject)
    if {"layer", "head"} & set(found.place_names):
        view.at_place(subject, lambda layer, head: _draw(found, subject, layer=layer, head=head))
    else:
        _draw(found, subject)


def _draw(found: View, subject: object, **place: int) -> None:
    try:
        show_view(found.name, subject, f"view-{found.name}", **place)  # type: ignore[arg-type]  # run or runs
    except Exception as error:  # an error of the plug-in's code
        message = (str(error).strip().splitlines() or ["no message"])[0]
        st.error(plain(f"The view {found.title} failed on this run: {type(error).__name__}: {message}"))
