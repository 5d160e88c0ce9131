"""A button in the sidebar that puts the address of what is seen into the clipboard."""

from __future__ import annotations

import streamlit as st

from kvlab.browser import read_static

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
