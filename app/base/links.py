"""Links between pages that keep the session and carry URL parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import streamlit as st

from app.base.component import component
from app.session.url_state import get_param

PAGES = Path(__file__).resolve().parents[2] / "pages"
# Former pages by their place in links: the page that shows them now, and its parameters. Links and stories keep theirs.
MOVED: dict[str, tuple[str, dict[str, str]]] = {
    "wall": ("cache", {"zoom": "Wall"}),
    "difference": ("cache", {"zoom": "Difference"}),
    "timeline": ("cache", {"zoom": "Timeline"}),
    "lineage": ("cache", {"zoom": "Lineage"}),
    "spans": ("cache", {"zoom": "Spans"}),
}


def place_now(name: str, query: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Where a page and its parameters are now: name and parameters."""
    now, further = MOVED.get(name, (name, {}))
    if name == "wall" and query.get("b", "none") != "none":  # the wall drew the difference itself
        further = MOVED["difference"][1]
    return now, {**query, **further}


def page_exists(name: str) -> bool:
    """Whether there is a page of this name."""
    return (PAGES / f"{MOVED.get(name, (name, {}))[0]}.py").exists()


def link(name: str, label: str, icon: str | None = None, help: str | None = None, **query: str) -> None:
    """A link to `pages/<name>.py`, or to what took its place, with these URL parameters; nothing if there is none."""
    if page_exists(name):
        name, query = place_now(name, query)
        st.page_link(PAGES / f"{name}.py", label=label, icon=icon, help=help, query_params=query or None)


def go(name: str, /, **query: str) -> None:
    """Switch to `pages/<name>.py`, or to what took its place."""
    name, query = place_now(name, query)
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
