"""The menu of a chart, table or text: export it as a picture or file, or add it to a story."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.base.text import plain, slug, unseen
from app.base.theme import theme as page_theme
from app.base.widgets import widget_options
from app.figures.add_slide import add_slide, slide_of
from app.figures.image_writer import browser, image_writer
from app.figures.provenance import picture_source, view_query
from kvlab.core.errors import UserError
from kvlab.report.deck import deck
from kvlab.report.export import FORMATS, why_unavailable
from kvlab.report.pictures import TALL, animation, estimate_gif, picture
from kvlab.report.views import History, Shown
from kvlab.trace.stories import Slide, Story, View
from kvlab.views.base import FigureSource, export
from kvlab.views.base.export import NO_BROWSER, ImageFormat

ITEMS = "shown_on_page"
MOST_SLIDES = 3  # of a whole view


@dataclass(frozen=True, eq=False)
class Offer:
    """A chart, table or text to export; `build` is called on export, as it takes seconds for 131,072 tokens."""

    title: str
    build: Callable[[], go.Figure | Shown]
    caption: str = ""
    source: FigureSource = ""
    has_picture: bool = False  # a table has none
    steps: int = 0  # frames of a GIF; none without
    frame: pd.DataFrame | None = None  # of a chart
    file_name: str = ""  # of files; the title without


def show_title(offer: Offer, key: str) -> None:
    """The title and the menu."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"heading-{key}"):
        st.markdown(f"**{plain(offer.title)}**", width="stretch")
        menu(offer, key)


def menu(offer: Offer, key: str) -> None:
    """A button that opens the menu. The page's offers are remembered for slides; one redrawn keeps its place."""
    st.session_state.setdefault(ITEMS, {})[key] = offer
    is_chart = offer.frame is not None
    with st.popover(
        unseen(f"Export: {offer.title}"),
        icon=":material/download:",
        help=f"Export {'this figure' if is_chart else 'it'}, or add it to a story",
        type="tertiary",
        key=f"menu-{key}",
    ):
        query = view_query()
        theme = page_theme()
        writer = image_writer()
        missing = offer.has_picture and browser() is None
        if missing:
            st.caption(NO_BROWSER)

        def image(kind: ImageFormat) -> bytes:
            shown = offer.build()
            source = picture_source(offer.source, query, shown)
            if isinstance(shown, go.Figure):
                return writer.image(shown, kind, offer.caption, source, theme)
            return writer.picture(picture(shown, theme, TALL), kind, offer.caption, source, theme)

        def gif() -> bytes:
            history = offer.build()
            assert isinstance(history, History)
            return animation(history, writer, theme)

        def page() -> bytes:
            shown = offer.build()
            if isinstance(shown, go.Figure):
                return export.page(shown, offer.caption, str(offer.source), theme)
            slide = slide_of(offer.title, shown, offer.caption, offer.source, query, theme)
            return deck(Story(name=offer.title, views=(View(page="", slide=slide),)))

        files: dict[str, Callable[[], bytes]] = {}
        if offer.has_picture:
            files = {"png": partial(image, "png"), "svg": partial(image, "svg")}
        if offer.steps > 1:
            files["gif"] = gif
        if offer.frame is not None:
            files["csv"] = partial(export.csv, offer.frame)
        files["html"] = page
        name = slug(offer.file_name or offer.title)
        label = unseen(f"of {offer.title}")
        # In one row, so that the menu of a figure at the bottom of the window is not cut.
        with st.container(horizontal=True, gap="small", width="content"):
            for kind, build in files.items():
                st.download_button(
                    f"{kind.upper()} {label}",
                    build,
                    f"{name}.{kind}",
                    key=f"{key}-{kind}",
                    on_click="ignore",
                    disabled=missing and kind in ("png", "svg", "gif"),
                )
        if offer.steps > 1:
            st.caption(f"GIF: {estimate_gif(offer.steps)}.")
        icon = ":material/bookmark_add:"
        words = f"Add to story {unseen(f'({offer.title})')}"
        if st.button(words, key=f"{key}-slide", icon=icon, help="As an interactive slide"):
            shown = offer.build()
            title = str(shown.layout.title.text or "Figure") if isinstance(shown, go.Figure) else offer.title
            add_slide(title, shown, offer.caption, offer.source)


def slides_of_view(items: Sequence[Offer]) -> list[Slide]:
    """Slides of the whole view: the first items of the page that fit, at most `MOST_SLIDES`.

    Raises:
        UserError: none does.
    """
    reason = ""
    slides = []
    for item in items:
        try:
            slides.append(slide_of(item.title, item.build(), item.caption, item.source, view_query(), page_theme()))
        except UserError as error:
            reason = reason or f" ({error})"
        if len(slides) == MOST_SLIDES:
            break
    if not slides:
        raise UserError(f"Nothing on this page fits on a slide{reason}.")
    return slides


def file_button(
    label: str, kind: str, make: Callable[[], bytes], name: str, media: str, key: str, **options: Any
) -> None:
    """A button that makes and downloads a file of a kind of `FORMATS`; disabled where it cannot be made."""
    looks = {"icon": ":material/download:", "on_click": "ignore", "key": f"{key}-{kind}"} | options
    st.download_button(label, make, name, media, **widget_options(why_unavailable(kind), **looks))


def explain_formats() -> None:
    """What to install for the formats that cannot be made here."""
    for why in sorted(set(map(why_unavailable, FORMATS)) - {""}):
        st.caption(plain(why))
