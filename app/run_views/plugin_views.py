"""The pages of views that plug-ins bring: kvlab's page around their frame and figure."""

from __future__ import annotations

from functools import partial

import streamlit as st

from app.base.text import plain
from app.base.theme import theme
from app.figures.figure import show
from app.navigation.selection import current_run
from app.run_views import page
from kvlab.common.errors import UserError
from kvlab.figures.base.views import VIEWS, View


def view_pages() -> list[st.Page]:
    """A page for every view that was registered; none without plug-ins."""
    found = []
    for view in VIEWS.values():
        script = partial(_page, view)
        found.append(st.Page(script, title=view.title, icon=":material/extension:", url_path=f"view_{view.name}"))
    return found


def _page(view: View) -> None:
    page.heading(plain(view.title), view.sentence)
    st.caption(plain(f"From the plug-in {VIEWS.origin(view.name).name}."))
    run = current_run()
    if run is None:
        return
    page.explain_status(run)
    try:
        frame = view.frame(run)
        figure, reading = view.figure(frame, theme()), view.reading(frame)
    except UserError as error:
        st.info(plain(str(error)), icon=":material/info:")
        return
    except Exception as error:  # a stranger's code: the other pages stand
        told = (str(error).strip().splitlines() or ["no message"])[0]
        st.error(plain(f"The view {view.title} failed on this run: {type(error).__name__}: {told}"))
        return
    if not figure.layout.title.text:
        figure.update_layout(title_text=view.title)
    show(figure, frame, reading, f"view-{view.name}", page.file_name(run, view.name), page.source(run))
