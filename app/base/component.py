"""Components of the dashboard that have a browser script of their own."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.session.streamlit_internals import STATIC
from kvlab.browser import read_static

SCRIPTS = "static/js/PlotlyChart.*.js"  # under another name Plotly is loaded with the first chart


def component(script: str, html: str = "<span></span>", *styles: str) -> Any:
    """The component of `kvlab/browser/static/SCRIPT.js`, with its markup and the style sheets of that folder."""
    name = f"kvlab_{script.replace('-', '_')}"
    css = read_static(*styles) if styles else None
    return st.components.v2.component(name, html=html, css=css, js=read_static(f"{script}.js"))


_preload = component("preload-plotly")


def load_plotly_ahead() -> None:
    """Call first on a page; shows nothing."""
    _preload(key="ahead", data={"scripts": _scripts()})


@st.cache_resource(show_spinner=False)
def _scripts() -> list[str]:
    return [file.relative_to(STATIC).as_posix() for file in STATIC.glob(SCRIPTS)]
