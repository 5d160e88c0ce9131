"""Plotly's code is fetched and read while the server still draws, not when the first chart arrives."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from kvlab.browser import read_static

SCRIPTS = "static/js/PlotlyChart.*.js"  # as Streamlit names it; where it does not, charts load as they would anyway

_component = st.components.v2.component("kvlab_preload", html="<span></span>", js=read_static("preload-plotly.js"))


def load_plotly_ahead() -> None:
    """Call first on a page; it shows nothing."""
    _component(key="ahead", data={"scripts": _scripts()})


@st.cache_resource(show_spinner=False)
def _scripts() -> list[str]:
    folder = Path(st.__file__).parent / "static"
    return [file.relative_to(folder).as_posix() for file in folder.glob(SCRIPTS)]
