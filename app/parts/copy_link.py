"""A button in the sidebar that puts the address of what is seen into the clipboard."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

STATIC = Path(__file__).parent / "static"
HTML = '<button class="kv-copy" type="button" title="A link that shows this view again">Copy link</button>'

_component = st.components.v2.component(
    "kvlab_copy_link",
    html=HTML,
    css=(STATIC / "copy-link.css").read_text(encoding="utf-8"),
    js=(STATIC / "copy-link.js").read_text(encoding="utf-8"),
)


def copy_link() -> None:
    """The button, on every page."""
    with st.sidebar:
        _component(key="copy-link", data={})
