"""Pages for the views of plug-ins, which provide a frame and a figure."""

from __future__ import annotations

from functools import partial

import streamlit as st

from app.base.text import plain
from app.base.theme import theme
from app.navigation.selection import current_run
from app.run_views import page
from kvlab.core.errors import UserError
from kvlab.views.base.views import VIEWS, View


def view_pages() -> list[st.Page]:
    """A page for every registered view."""
    return [
        st.Page(partial(_page, view), title=view.title, icon=":material/extension:", url_path=f"view_{view.name}")
        for view in VIEWS.values()
    ]


def _page(view: View) -> None:
    page.heading(plain(view.title), view.sentence)
    st.caption(plain(f"From the plug-in {VIEWS.origin(view.name).name}."))
    run = current_run()
    if run is None:
        return
    page.explain_status(run)
    try:
        frame = view.frame(run)
        figure = view.figure(frame, theme())
        caption = view.caption(frame)
    except UserError as error:
        st.info(plain(str(error)), icon=":material/info:")
        return
    except Exception as error:  # an error of the plug-in's code
        message = (str(error).strip().splitlines() or ["no message"])[0]
        st.error(plain(f"The view {view.title} failed on this run: {type(error).__name__}: {message}"))
        return
    if not figure.layout.title.text:
        figure.update_layout(title_text=view.title)
    page.show_figure(run, figure, frame, caption, f"view-{view.name}", view.name)
