"""Links between pages that keep the session and carry URL parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from app.base.component import component
from app.session.url_state import get_param

PAGES = Path(__file__).resolve().parents[2] / "pages"


def page_exists(name: str) -> bool:
    """Whether there is a page of this name."""
    return (PAGES / f"{name}.py").exists()


def link(name: str, label: str, icon: str | None = None, help: str | None = None, **query: str) -> None:
    """A link to `pages/<name>.py` with these URL parameters; nothing if there is no such page."""
    if page_exists(name):
        page_link(PAGES / f"{name}.py", label, icon, help, **query)


def page_link(page: Any, label: str, icon: str | None = None, help: str | None = None, **query: str) -> None:
    """A link to a page of Streamlit or a script with these URL parameters."""
    st.page_link(page, label=label, icon=icon, help=help, query_params=query or None)


def go(name: str, /, **query: str) -> None:
    """Switch to `pages/<name>.py`."""
    st.switch_page(PAGES / f"{name}.py", query_params=query or None)


def run_in_url() -> dict[str, str]:
    """The run and comparison in the URL, which the menu's links do not carry."""
    return {name: value for name in ("run", "comparison") if (value := get_param(name))}


def place_in_url() -> dict[str, str]:
    """The token, layer and head in the URL, for links to pages of a run."""
    return {name: value for name in ("token", "layer", "head") if (value := get_param(name))}


HTML = '<button class="kv-copy" type="button" title="A link that shows this view again">Copy link</button>'
_component = component("copy-link", HTML, "copy-link.css")


def copy_link() -> None:
    """A button in the sidebar that copies the link of the view."""
    with st.sidebar:
        _component(key="copy-link", data={})
