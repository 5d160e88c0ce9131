"""The menu of a table or text: export it as a picture or file, or add it to a story."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import streamlit as st

from app.base.text import plain, unseen
from app.base.theme import theme as page_theme
from app.base.widgets import widget_options
from app.figures.add_slide import add_slide, slide_of
from app.figures.figure import STORY_BUTTON, slug
from app.figures.image_writer import browser, image_writer
from app.figures.provenance import Item, picture_source, record_item, view_query
from kvlab.report.deck import deck
from kvlab.report.export import FORMATS, why_unavailable
from kvlab.report.pictures import TALL, animation, estimate_gif, picture
from kvlab.report.views import History, Shown
from kvlab.trace.stories import Story, View
from kvlab.views.base.export import NO_BROWSER, ImageFormat
from kvlab.views.base.provenance import FigureSource

HELP = "Export it, or add it to a story"


@dataclass(frozen=True)
class Offer:
    """A table or text to export; `build` is called on export, as it takes seconds for 131,072 tokens."""

    title: str
    build: Callable[[], Shown]
    caption: str = ""
    source: FigureSource = ""
    has_picture: bool = False
    steps: int = 0  # frames of a GIF; none without


def show_title(offer: Offer, key: str) -> None:
    """The title and the menu."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"heading-{key}"):
        st.markdown(f"**{plain(offer.title)}**", width="stretch")
        menu(offer, key)


def menu(offer: Offer, key: str) -> None:
    """A button that opens the menu."""
    record_item(key, Item(offer.title, offer.build, offer.caption, offer.source, offer.has_picture))
    with st.popover(
        unseen(f"Export: {offer.title}"), icon=":material/download:", help=HELP, type="tertiary", key=f"menu-{key}"
    ):
        name = slug(offer.title)
        query = view_query()
        theme = page_theme()
        label = unseen(f"of {offer.title}")
        with st.container(horizontal=True, gap="small", width="content"):
            kinds: dict[str, Callable[[], bytes]] = {}
            missing = False
            if offer.has_picture:
                writer = image_writer()
                missing = browser() is None
                if missing:
                    st.caption(NO_BROWSER)

                def image(kind: ImageFormat) -> bytes:
                    shown = offer.build()
                    source = picture_source(offer.source, query, shown)
                    return writer.picture(picture(shown, theme, TALL), kind, offer.caption, source, theme)

                def gif() -> bytes:
                    history = offer.build()
                    assert isinstance(history, History)
                    return animation(history, writer, theme)

                kinds = {"png": partial(image, "png"), "svg": partial(image, "svg")}
                kinds |= {"gif": gif} if offer.steps > 1 else {}
            for kind, build in kinds.items():
                st.download_button(
                    f"{kind.upper()} {label}",
                    build,
                    f"{name}.{kind}",
                    key=f"{key}-{kind}",
                    on_click="ignore",
                    disabled=missing,
                )

            def page() -> bytes:
                slide = slide_of(offer.title, offer.build(), offer.caption, offer.source, query, theme)
                return deck(Story(name=offer.title, views=(View(page="", slide=slide),)))

            st.download_button(f"HTML {label}", page, f"{name}.html", key=f"{key}-html", on_click="ignore")
        if offer.steps > 1:
            st.caption(f"GIF: {estimate_gif(offer.steps)}.")
        if st.button(f"Add to story {unseen(f'({offer.title})')}", key=f"{key}-slide", **STORY_BUTTON):
            add_slide(offer.title, offer.build(), offer.caption, offer.source)


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
