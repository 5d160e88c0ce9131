"""The process that renders figures as images, shared by all sessions."""

import streamlit as st

from kvlab.views.base import export


@st.cache_data(ttl=60, show_spinner=False)
def browser() -> str | None:
    """The path of Chromium, if installed; looked up again after a minute."""
    return export.find_browser()


@st.cache_resource(show_spinner=False, on_release=export.ImageWriter.close)
def image_writer() -> export.ImageWriter:
    """The server's image writer; its Chromium starts with the first image and stops with the server."""
    return export.ImageWriter()
