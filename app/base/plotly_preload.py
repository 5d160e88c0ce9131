"""Load Plotly's code while the server still draws, instead of when the first chart arrives."""

from __future__ import annotations

import streamlit as st

from app.session.streamlit_internals import STATIC
from kvlab.browser import read_static

SCRIPTS = "static/js/PlotlyChart.*.js"  # under another name Plotly is loaded with the first chart

_component = st.components.v2.component("kvlab_preload", html="<span></span>", js=read_static("preload-plotly.js"))


def load_plotly_ahead() -> None:
    """Call first on a page; shows nothing."""
    _component(key="ahead", data={"scripts": _scripts()})


@st.cache_resource(show_spinner=False)
def _scripts() -> list[str]:
    return [file.relative_to(STATIC).as_posix() for file in STATIC.glob(SCRIPTS)]
