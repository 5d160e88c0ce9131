"""The menu of what is no chart, a table or a text: take it away as picture or file, or add it to a story."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import streamlit as st

from app.base import permission
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.figures.add_slide import add_slide, slide_of
from app.figures.figure import slug
from app.figures.image_writer import browser, image_writer
from app.figures.provenance import address, for_picture
from app.figures.shown_on_page import Seen, note_seen
from kvlab.figures.base.export import NO_BROWSER, ImageFormat
from kvlab.figures.base.palette import Theme
from kvlab.report.deck import deck
from kvlab.report.gif import animation, estimate_gif
from kvlab.report.pictures import TALL, picture
from kvlab.report.views import History, Shown
from kvlab.trace.stories import Story, View


@dataclass(frozen=True)
class Offer:
    """Something that can be taken away: `make` is called when it is, as a text of 131,072 tokens takes seconds."""

    title: str
    make: Callable[[], Shown]
    reading: str = ""
    source: str = ""
    pictured: bool = False
    steps: int = 0  # that a GIF could play


def titled(offer: Offer, key: str) -> None:
    """The title with its menu."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"heading-{key}"):
        st.markdown(f"**{plain(offer.title)}**", width="stretch")
        menu(offer, key)


def menu(offer: Offer, key: str) -> None:
    """A button that opens what can be done with it."""
    note_seen(key, Seen(offer.title, offer.make, offer.reading, offer.source))
    tip = "Take it away, or add it to a story"
    with st.popover("", icon=":material/download:", help=tip, type="tertiary", key=f"menu-{key}"):
        name, asked, theme = slug(offer.title), address(), page_theme()
        with st.container(horizontal=True, gap="small", width="content"):
            if offer.pictured:
                _pictures(offer, name, key, asked, theme)

            def alone() -> bytes:
                slide = slide_of(offer.title, offer.make(), offer.reading, offer.source, asked, theme)
                return deck(Story(name=offer.title, views=(View(page="", slide=slide),)))

            st.download_button("HTML", alone, f"{name}.html", key=f"{key}-html", on_click="ignore")
        if offer.steps > 1:
            st.caption(f"GIF: {estimate_gif(offer.steps)}.")
        tip = "As a slide that stays alive"
        if permission.button(
            "Add to story", permission.why_not(), icon=":material/bookmark_add:", key=f"{key}-slide", help=tip
        ):
            add_slide(offer.title, offer.make(), offer.reading, offer.source)


def _pictures(offer: Offer, name: str, key: str, asked: dict[str, str], theme: Theme) -> None:
    writer, missing = image_writer(), browser() is None
    if missing:
        st.caption(NO_BROWSER)

    def image(kind: ImageFormat) -> bytes:
        shown = offer.make()
        source = for_picture(offer.source, asked, shown)
        return writer.picture(picture(shown, theme, TALL), kind, offer.reading, source, theme)

    def played() -> bytes:
        history = offer.make()
        assert isinstance(history, History)
        return animation(history, writer, theme)

    kinds: dict[str, Callable[[], bytes]] = {"png": partial(image, "png"), "svg": partial(image, "svg")}
    if offer.steps > 1:
        kinds["gif"] = played
    for kind, make in kinds.items():
        st.download_button(
            kind.upper(), make, f"{name}.{kind}", key=f"{key}-{kind}", on_click="ignore", disabled=missing
        )
