"""The rest of a page is drawn once its first picture is on the screen, so that the picture does not wait for it.

The browser shows nothing of a page's charts before it has drawn all that have arrived.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import streamlit as st

from kvlab.browser import read_static

WAITING = "waits-for-the-first-picture-"
HEAD_START_SECONDS = 0.05

_component = st.components.v2.component("kvlab_first_paint", html="<span></span>", js=read_static("first-paint.js"))


def let_it_out() -> None:
    """Call behind what the reader waits for, before what takes time: what was drawn so far reaches the browser first.

    The thread that sends it gets its turn only when the one that draws pauses; 1.6 MB came 80 ms later without.
    """
    time.sleep(HEAD_START_SECONDS)


@st.fragment
def after_the_first_picture(identity: str, draw: Callable[..., None], *arguments: Any) -> None:
    """Call `draw` with `arguments` when the browser says that a chart is there; later at once, for the same `identity`.

    `identity` names the page and the run it shows.
    """
    key = WAITING + identity
    if st.session_state.setdefault(key, True):
        st.caption("Drawing the rest …")
        _component(key=f"later-{identity}", on_painted_change=lambda: st.session_state.update({key: False}))
        return
    draw(*arguments)
