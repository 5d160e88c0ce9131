"""A figure on a page: the chart, its caption, and the export menu; registered views by name."""

import re
from collections.abc import Callable
from inspect import signature
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.base.text import plain, terms_in, unseen
from app.base.theme import theme as page_theme
from app.figures.add_slide import add_slide
from app.figures.image_writer import browser, image_writer
from app.figures.provenance import ITEMS, Item, picture_source, record_item, view_query
from app.session.open_runs import BY_STAMP
from kvlab.core.errors import UserError
from kvlab.views.base import PLOTLY_CONFIG, FigureSource, export, has_colour_bar, same_cells, same_lines
from kvlab.views.base.view import Drawn, Subject, find_view

SHOWN = "shown_figures"
STORY_BUTTON: dict[str, Any] = {"icon": ":material/bookmark_add:", "help": "As an interactive slide"}
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
    on_click: Callable[[], None] | None = None,
    noted: str | None = None,
    exported: go.Figure | None = None,
) -> bool:
    """Draw title and export menu, the chart, and its caption; `source` is the run and versions, for exports.

    `exported` is the figure for files and slides, where it is laid out in another way than on the page.
    `noted` is what is under the chart in place of the caption, where the page has part of it elsewhere. `on_click` is
    called when a mark of the chart is clicked; the selection is then in the session under `key`. Returns False, without
    a chart, if all of its lines or cells are equal.
    """
    exported = exported or figure
    collect(key, export.Section(exported, caption, str(source)))
    title = str(figure.layout.title.text or filename)
    heading(title, lambda: exported, frame, caption, key, filename, source)
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
        on_select=on_click or "ignore",
        selection_mode="points",
    )
    note(caption if noted is None else noted, title)
    return True


def begin_page() -> None:
    """Forget the figures and items of the page before."""
    st.session_state[SHOWN] = {}
    st.session_state[ITEMS] = {}


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


def heading(
    title: str,
    draw: Callable[[], go.Figure],
    frame: pd.DataFrame,
    caption: str,
    key: str,
    filename: str,
    source: FigureSource = "",
) -> None:
    """The title of a figure with its export menu; `draw` is called on export."""
    record_item(key, Item(title, draw, caption, source))
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"heading-{key}"):
        st.markdown(f"**{plain(title)}**", width="stretch")
        with st.popover(
            unseen(f"Export: {title}"),
            icon=":material/download:",
            help="Export this figure, or add it to a story",
            type="tertiary",
            key=f"menu-{key}",
        ):
            name = slug(filename)
            theme = page_theme()
            query = view_query()
            writer = image_writer()
            missing = browser() is None
            if missing:
                st.caption(export.NO_BROWSER)

            def image(kind: export.ImageFormat) -> bytes:
                figure = draw()
                return writer.image(figure, kind, caption, picture_source(source, query, figure), theme)

            label = unseen(f"of {title}")
            # In one row, so that the menu of a figure at the bottom of the window is not cut.
            with st.container(horizontal=True, gap="small", width="content"):
                files: dict[str, Callable[[], bytes]] = {
                    "png": lambda: image("png"),
                    "svg": lambda: image("svg"),
                    "csv": lambda: export.csv(frame),
                    "html": lambda: export.page(draw(), caption, str(source), theme),
                }
                for kind, build in files.items():
                    st.download_button(
                        f"{kind.upper()} {label}",
                        build,
                        f"{name}.{kind}",
                        key=f"{key}-{kind}",
                        on_click="ignore",
                        disabled=missing and kind in ("png", "svg"),
                    )
            if st.button(f"Add to story {unseen(f'({title})')}", key=f"{key}-slide", **STORY_BUTTON):
                figure = draw()
                add_slide(str(figure.layout.title.text or "Figure"), figure, caption, source)


def note(caption: str, title: str = "") -> None:
    """The caption of a figure, escaped, as it quotes token text; terms are explained on hover."""
    st.caption(plain(caption), help=terms_in(f"{title} {caption}"))


def slug(text: str) -> str:
    """The text as a file name: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower().replace("%", "pc")).strip("-") or "figure"


OPEN_FRAMES = 64


def show_view(
    name: str,
    subject: Subject,
    key: str,
    *,
    on_click: Callable[[], None] | None = None,
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
