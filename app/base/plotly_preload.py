"""Load Plotly's code while the server still draws, instead of when the first chart arrives."""

from __future__ import annotations

import streamlit as st

from app.base.component import component
from app.session.streamlit_internals import STATIC

SCRIPTS = "static/js/PlotlyChart.*.js"  # under another name Plotly is loaded with the first chart

_component = component("preload-plotly")


def load_plotly_ahead() -> None:
    """Call first on a page; shows nothing."""
    _component(key="ahead", data={"scripts": _scripts()})


@st.cache_resource(show_spinner=False)
def _scripts() -> list[str]:
    return [file.relative_to(STATIC).as_posix() for file in STATIC.glob(SCRIPTS)]
