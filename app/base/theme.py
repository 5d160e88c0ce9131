"""The theme that the browser shows, for figures."""

import streamlit as st

from kvlab.views.base.palette import Theme


def theme() -> Theme:
    """Light or dark."""
    return "dark" if st.context.theme.type == "dark" else "light"
