"""Draw the rest of a page once its first chart is on the screen.

The browser paints no chart before it has drawn all that have arrived, so the first one would wait for the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import streamlit as st

from app.base.component import component

WAITING = "waits-for-the-first-picture-"
HEAD_START_SECONDS = 0.05

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
    if st.session_state.setdefault(key, True):
        st.caption("Drawing the rest …")
        _component(key=f"later-{identity}", on_painted_change=lambda: st.session_state.update({key: False}))
        return
    draw(*arguments)
