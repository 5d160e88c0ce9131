"""A button that opens an HTML page with scripts of its own in a new tab."""

from __future__ import annotations

import streamlit as st

from kvlab.browser import read_static

_present = st.components.v2.component(
    "kvlab_present",
    html='<button class="kv-present" type="button">Present</button>',
    css=read_static("present.css"),
    js=read_static("present.js"),
)


def present_button(page: str, key: str) -> None:
    """The button; `page` is the HTML, which the browser receives now."""
    _present(key=key, data={"html": page})
