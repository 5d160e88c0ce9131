"""The theme of the dashboard, light or dark, as figures take it."""

from __future__ import annotations

import streamlit as st

from kvlab.figures.base.palette import Theme


def theme() -> Theme:
    """The theme the browser shows."""
    return "dark" if st.context.theme.type == "dark" else "light"
