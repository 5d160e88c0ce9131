"""A figure on a page: the chart, what the reader sees in it, and a menu to take it away."""

from __future__ import annotations

import re
from collections.abc import Callable

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.base import permission
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.figures.add_slide import add_slide
from app.figures.image_writer import browser, image_writer
from app.figures.provenance import address, for_picture
from app.figures.shown_on_page import Seen, forget_seen, note_seen
from kvlab.figures.base import export
from kvlab.figures.base.marks import has_colour_bar, same_lines
from kvlab.results.provenance import FigureSource

SHOWN = "shown_figures"
CONFIG = {
    "displaylogo": False,
    "scrollZoom": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "toImage"],
}


def show(
    figure: go.Figure,
    frame: pd.DataFrame,
    reading: str,
    key: str,
    filename: str,
    source: FigureSource = "",
    on_click: Callable[[], None] | None = None,
) -> bool:
    """Title and export menu, the chart, and its one-line reading; `source` names run and versions in the HTML file.

    `on_click` is called when a mark of the chart is clicked; what it was then lies under `key` in the session. False
    where no chart is drawn, as all of its lines are the same.
    """
    collect(key, export.Section(figure, reading, str(source)))
    title = str(figure.layout.title.text or filename)
    heading(title, lambda: figure, frame, reading, key, filename, source)
    if count := same_lines(figure):
        note(f"All {count} lines are the same, so they are not drawn. {reading}")
        return False
    # The title is text of the page, so that it wraps and zooms with it.
    # Above a colour bar there is room for the toolbar, which would lie on it.
    above = 34 if has_colour_bar(figure) else 30 if figure.layout.annotations else 12
    chart = go.Figure(figure).update_layout(title=None, margin_t=above, height=(figure.layout.height or 400) - 30)
    st.plotly_chart(
        chart,
        theme=None,
        key=key,
        config=CONFIG,
        alt=f"{title}. {reading}",
        on_select=on_click or "ignore",
        selection_mode="points",
    )
    note(reading)
    return True


def forget_shown() -> None:
    """Called where a page begins: what it shows from here on makes up its file."""
    st.session_state[SHOWN] = {}
    forget_seen()


def collect(key: str, section: export.Section) -> None:
    """Takes a figure into the page's file, once however often the page is drawn again."""
    st.session_state.setdefault(SHOWN, {})[key] = section


def page_file(title: str, introduction: str) -> None:
    """A button for all figures the page has shown so far as one HTML file that needs nothing else."""
    sections, theme = list(st.session_state.get(SHOWN, {}).values()), page_theme()
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


def heading(
    title: str,
    draw: Callable[[], go.Figure],
    frame: pd.DataFrame,
    reading: str,
    key: str,
    filename: str,
    source: FigureSource = "",
) -> None:
    """The title of a figure with its export menu; `draw` is called when a file is asked for."""
    note_seen(key, Seen(title, draw, reading, source))
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"heading-{key}"):
        st.markdown(f"**{plain(title)}**", width="stretch")
        with st.popover(
            "",
            icon=":material/download:",
            help="Export this figure: PNG, SVG, CSV, HTML",
            type="tertiary",
            key=f"menu-{key}",
        ):
            _downloads(draw, frame, reading, key, slug(filename), source)


def note(reading: str) -> None:
    """The one line that says what the reader sees; it quotes token text, which Markdown must not read."""
    st.caption(plain(reading))


def _downloads(
    draw: Callable[[], go.Figure], frame: pd.DataFrame, reading: str, key: str, name: str, source: FigureSource
) -> None:
    theme = page_theme()
    missing = browser() is None
    if missing:
        st.caption(export.NO_BROWSER)
    writer = image_writer()

    asked = address()

    def image(kind: export.ImageFormat) -> bytes:
        figure = draw()
        return writer.image(figure, kind, reading, for_picture(source, asked, figure), theme)

    # In one row, so that the menu of a figure at the foot of the window stays inside it.
    with st.container(horizontal=True, gap="small", width="content"):
        _button("PNG", lambda: image("png"), f"{name}.png", f"{key}-png", disabled=missing)
        _button("SVG", lambda: image("svg"), f"{name}.svg", f"{key}-svg", disabled=missing)
        _button("CSV", lambda: export.csv(frame), f"{name}.csv", f"{key}-csv")
        _button("HTML", lambda: export.page(draw(), reading, str(source), theme), f"{name}.html", f"{key}-html")
    tip = "As a slide that stays alive"
    if permission.button(
        "Add to story", permission.why_not(), icon=":material/bookmark_add:", key=f"{key}-slide", help=tip
    ):
        figure = draw()
        add_slide(str(figure.layout.title.text or "Figure"), figure, reading, source)


def _button(label: str, make: Callable[[], bytes], file_name: str, key: str, disabled: bool = False) -> None:
    st.download_button(label, make, file_name, key=key, on_click="ignore", disabled=disabled)


def slug(text: str) -> str:
    """A file name without spaces or signs."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower().replace("%", "pc")).strip("-") or "figure"
