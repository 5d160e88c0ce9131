"""Links from page to page that keep the session and carry what to show in the URL."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from kvlab.browser import read_static

PAGES = Path(__file__).resolve().parents[2] / "pages"


def page_exists(name: str) -> bool:
    return (PAGES / f"{name}.py").exists()


def link(name: str, label: str, icon: str | None = None, help: str | None = None, **query: str) -> None:
    """A link to `pages/<name>.py` with these query parameters; nothing when there is no such page."""
    if page_exists(name):
        st.page_link(PAGES / f"{name}.py", label=label, icon=icon, help=help, query_params=query or None)


def go(name: str, **query: str) -> None:
    """Leave for `pages/<name>.py`."""
    st.switch_page(PAGES / f"{name}.py", query_params=query or None)


def in_view() -> dict[str, str]:
    """The run and comparison of the address, which the menu's links do not carry."""
    return {name: value for name in ("run", "comparison") if (value := st.query_params.get(name))}


HTML = '<button class="kv-copy" type="button" title="A link that shows this view again">Copy link</button>'
_component = st.components.v2.component(
    "kvlab_copy_link",
    html=HTML,
    css=read_static("copy-link.css"),
    js=read_static("copy-link.js"),
)


def copy_link() -> None:
    """The button, on every page."""
    with st.sidebar:
        _component(key="copy-link", data={})
