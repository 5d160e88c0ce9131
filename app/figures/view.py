"""Show a registered view on a page: its frame is cached, and the rest is drawn of it."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import pandas as pd
import streamlit as st

from app.base.text import plain
from app.base.theme import theme as page_theme
from app.figures.figure import note, show
from app.session.open_runs import BY_STAMP
from kvlab.core.errors import UserError
from kvlab.views.base.provenance import FigureSource
from kvlab.views.base.view import Drawn, Subject, find_view

OPEN_FRAMES = 64


def show_view(
    name: str,
    subject: Subject,
    key: str,
    *,
    on_click: Callable[[], None] | None = None,
    source: FigureSource = "",
    **place: Any,
) -> Drawn | None:
    """The view with its title, export menu (pictures, CSV, HTML, a slide of a story), alternative text and caption.

    None, with one sentence, if the subject cannot give it. `on_click` and `key` are those of `app.figures.figure.show`.
    """
    found = find_view(name)
    try:
        found.check(subject)
        wanted = {part: place[part] for part in signature(found.read).parameters if part in place}
        frame = frame_of(name, subject, **wanted)
        if frame.empty:
            note(found.describe(frame, subject, **place) or "There is nothing to draw here.")
            return None
        drawn = found.draw_frame(frame, subject, page_theme(), source, **place)
    except UserError as error:
        st.info(plain(str(error)), icon=":material/info:")
        return None
    show(drawn.figure, drawn.frame, drawn.caption, key, drawn.file_name, drawn.provenance, on_click)
    return drawn


@st.cache_resource(max_entries=OPEN_FRAMES, show_spinner=False, hash_funcs=BY_STAMP)
def frame_of(name: str, subject: Subject, **place: Any) -> pd.DataFrame:
    """The frame of a view, kept by the runs' stamps; raises UserError as the view's function."""
    return find_view(name).frame(subject, **place)
