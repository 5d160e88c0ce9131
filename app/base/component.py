"""Components of the dashboard that have a browser script of their own, and drawing that waits for the first chart.

The browser paints no chart before it has drawn all that have arrived, so the first one would wait for the others.
"""

import time
from collections.abc import Callable
from typing import Any

import streamlit as st

from app.session.streamlit_internals import STATIC
from kvlab.browser import read_static

# Under another name Plotly is loaded with the first chart.
SCRIPTS = [file.relative_to(STATIC).as_posix() for file in STATIC.glob("static/js/PlotlyChart.*.js")]


def component(script: str, html: str = "<span></span>", *styles: str) -> Any:
    """The component of `kvlab/browser/static/SCRIPT.js`, with its markup and the style sheets of that folder."""
    name = f"kvlab_{script.replace('-', '_')}"
    css = read_static(*styles) if styles else None
    return st.components.v2.component(name, html=html, css=css, js=read_static(f"{script}.js"))


def on_value(key: str, name: str, use: Callable[[Any], object]) -> None:
    """For a component's callback: `use` gets the value of this name, unless the browser has sent None."""
    if (value := st.session_state[key].get(name)) is not None:
        use(value)


_preload = component("preload-plotly")


def load_plotly_ahead() -> None:
    """Call first on a page; shows nothing."""
    _preload(key="ahead", data={"scripts": SCRIPTS})


WAITING = "waits-for-the-first-picture-"
HEAD_START_SECONDS = 0.05
WAITS = True  # tests draw all at once

_component = component("first-paint")


def flush() -> None:
    """Let the browser receive what was drawn so far; call before something slow.

    The sending thread gets its turn only when the drawing thread pauses; without this 1.6 MB came 80 ms later.
    """
    time.sleep(HEAD_START_SECONDS)


@st.fragment
def after_first_chart(identity: str, draw: Callable[..., None], *arguments: Any) -> None:
    """Call `draw` once the browser has painted a chart; from then on at once for the same `identity` (page and run)."""
    key = WAITING + identity
    if st.session_state.setdefault(key, WAITS):
        st.caption("Drawing the rest …")
        _component(key=f"later-{identity}", on_painted_change=lambda: st.session_state.update({key: False}))
        return
    draw(*arguments)
