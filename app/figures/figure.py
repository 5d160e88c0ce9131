"""A figure on a page: the chart, its caption, and the export menu; registered views by name."""

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.base.text import plain, slug, terms_in
from app.base.theme import theme as page_theme
from app.figures.export_menu import Offer, show_title
from app.session.open_runs import BY_STAMP
from kvlab.core.errors import UserError
from kvlab.views.base import PLOTLY_CONFIG, FigureSource, export, has_colour_bar, same_cells, same_lines
from kvlab.views.base.view import Drawn, Subject, find_view

SHOWN = "shown_figures"
CONFIG = PLOTLY_CONFIG | {
    "scrollZoom": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "toImage"],
}


def show(
    figure: go.Figure,
    frame: pd.DataFrame,
    caption: str,
    key: str,
    filename: str,
    source: FigureSource = "",
    on_click: Callable[[list[Any]], object] | None = None,
    noted: str | None = None,
    exported: go.Figure | None = None,
) -> bool:
    """Draw title and export menu, the chart, and its caption; `source` is the run and versions, for exports.

    `exported` is the figure for files and slides, where it is laid out in another way than on the page.
    `noted` is what is under the chart in place of the caption, where the page has part of it elsewhere. `on_click` gets
    the `customdata` of a mark that is clicked. Returns False, without a chart, if all of its lines or cells are equal.
    """
    exported = exported or figure
    collect(key, export.Section(exported, caption, str(source)))
    title = str(figure.layout.title.text or filename)
    show_title(Offer(title, lambda: exported, caption, source, has_picture=True, frame=frame, file_name=filename), key)
    if count := same_lines(figure):
        note(f"All {count} lines are equal, so they are not drawn. {caption}")
        return False
    if count := same_cells(figure):
        note(f"All {count:,} cells have the same colour, so the map is not drawn. {caption}")
        return False
    # The title is page text, so that it wraps and zooms. The margin keeps the toolbar off a colour bar.
    above = 34 if has_colour_bar(figure) else 30 if figure.layout.annotations else 12
    chart = go.Figure(figure).update_layout(title=None, margin_t=above, height=(figure.layout.height or 400) - 30)
    st.plotly_chart(
        chart,
        theme=None,
        key=key,
        config=CONFIG,
        alt=f"{title}. {caption}",
        on_select=partial(_use_clicked, key, on_click) if on_click else "ignore",
        selection_mode="points",
    )
    note(caption if noted is None else noted, title)
    return True


def _use_clicked(key: str, use: Callable[[list[Any]], object]) -> None:
    points = st.session_state[key].selection.points
    if points and (cell := points[0].get("customdata")):
        use(list(cell))


def collect(key: str, section: export.Section) -> None:
    """Add a figure to the page's HTML file, or replace the one of this key."""
    st.session_state.setdefault(SHOWN, {})[key] = section


def page_file(title: str, introduction: str) -> None:
    """A button that exports all figures shown so far as one self-contained HTML file."""
    sections = list(st.session_state.get(SHOWN, {}).values())
    theme = page_theme()
    st.download_button(
        "This page as one HTML file",
        lambda: export.document(title, introduction, sections, theme),
        f"{slug(title)}.html",
        key="page-file",
        on_click="ignore",
        icon=":material/download:",
        type="tertiary",
        disabled=not sections,
    )


def note(caption: str, title: str = "") -> None:
    """The caption of a figure, escaped, as it quotes token text; terms are explained on hover."""
    st.caption(plain(caption), help=terms_in(f"{title} {caption}"))


OPEN_FRAMES = 64


def show_view(
    name: str,
    subject: Subject,
    key: str,
    *,
    on_click: Callable[[list[Any]], object] | None = None,
    source: FigureSource = "",
    frame: pd.DataFrame | None = None,
    **place: Any,
) -> Drawn | None:
    """The view with its title, export menu (pictures, CSV, HTML, a slide of a story), alternative text and caption.

    None, with one sentence, if the subject cannot give it, or if all of its lines or cells are equal. `frame` is the
    view's, where the page has read it for something else too. `on_click` and `key` are those of `show`.
    """
    found = find_view(name)
    try:
        found.check(subject)
        wanted = {part: place[part] for part in signature(found.read).parameters if part in place}
        frame = frame_of(name, subject, **wanted) if frame is None else frame
        if frame.empty:
            note(found.describe(frame, subject, **place) or "There is nothing to draw here.")
            return None
        drawn = found.draw_frame(frame, subject, page_theme(), source, **place)
    except UserError as error:
        st.info(plain(str(error)), icon=":material/info:")
        return None
    has_chart = show(drawn.figure, drawn.frame, drawn.caption, key, drawn.file_name, drawn.provenance, on_click)
    return drawn if has_chart else None


def in_pairs(*charts: Callable[[], object]) -> None:
    """Draw charts two in a row; the last of an odd number has its row to itself."""
    for first in range(0, len(charts), 2):
        pair = charts[first : first + 2]
        for column, draw in zip(st.columns(len(pair), gap="large"), pair, strict=True):
            with column:
                draw()


@st.cache_resource(max_entries=OPEN_FRAMES, show_spinner=False, hash_funcs=BY_STAMP)
def frame_of(name: str, subject: Subject, **place: Any) -> pd.DataFrame:
    """The frame of a view, kept by the runs' stamps; raises UserError as the view's function."""
    return find_view(name).frame(subject, **place)
