"""Links between pages that keep the session and carry URL parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from app.base.component import component
from app.session.url_state import get_param

START = "start"
FIRST = "first"  # what Streamlit calls the start page, which is served at the root


def page_at(name: str, draw: Callable[[], None] = lambda: None, **looks: Any) -> st.Page:
    """The page of this name in addresses; what a link leads to needs no `draw`."""
    return st.Page(draw, url_path=FIRST if name == START else name, default=name == START, **{"title": name} | looks)


def link(to: str | st.Page, label: str, icon: str | None = None, help: str | None = None, **query: str) -> None:
    """A link to a page, or to the page of this name, with these URL parameters."""
    page = page_at(to) if isinstance(to, str) else to
    st.page_link(page, label=label, icon=icon, help=help, query_params=query or None)


def go(name: str, /, **query: str) -> None:
    """Switch to the page of this name."""
    st.switch_page(page_at(name), query_params=query or None)


RUN = ("run", "comparison")  # which the menu's links do not carry
PLACE = ("token", "layer", "head")  # for links to pages of a run


def from_url(names: Sequence[str]) -> dict[str, str]:
    """Those of these parameters that the URL has, for a link that carries them on."""
    return {name: value for name in names if (value := get_param(name))}


HTML = '<button class="kv-copy" type="button" title="A link that shows this view again">Copy link</button>'
_component = component("copy-link", HTML, "copy-link.css")


def copy_link() -> None:
    """A button in the sidebar that copies the link of the view."""
    with st.sidebar:
        _component(key="copy-link", data={})
