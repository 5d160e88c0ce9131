"""The bar that stays on top of every page: which prompt, run, layer, head and step one looks at, and the pickers.

`app/main.py` opens it before the page runs. A page says what it needs by asking `app.navigation.selection` for it (the
run, a layer, a head, a step), and each picker then stands here. A click on a cell of a chart that says where its cells
lead (`kvlab.figures.places`) goes there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.base import permission
from app.base.text import plain
from kvlab.analysis.comparison.textdiff import Segment
from kvlab.browser import read_static
from kvlab.report.views import Passages

KEY, CLICKS = "context-bar", "context-clicks"
STYLES = ("context-bar.css", "small-window.css", "theme-switch-position.css")
MOST_SIGNS = 20_000  # of a prompt that are sent to the browser
WIDTHS = {"comparison": 250, "repeat": 104, "layer": 88, "head": 96, "step": 110}
MEANS = "All numbers of this page are of one prompt: means are over its heads, layers, steps or tokens."

_parts: ContextVar[dict[str, DeltaGenerator]] = ContextVar("context_bar")

_clicks = st.components.v2.component("kvlab_context_bar", html="<span></span>", js=read_static("context-bar.js"))


def begin() -> None:
    """Makes room for the bar; it is not there on a page that asks for nothing."""
    st.html(f"<style>{read_static(*STYLES)}</style>")
    _parts.set({"bar": st.container(key=KEY, gap=None)})


def place(name: str = "pickers") -> DeltaGenerator:
    """The row of pickers, or the line under it (`line`); on a page that is run alone, a row where the page stands."""
    known = dict(_parts.get({}))
    if "bar" not in known:
        known["bar"] = st.container(key=KEY, gap=None)
    if name not in known:
        with known["bar"]:
            known[name] = st.container(key=f"context-{name}", horizontal=True, vertical_alignment="bottom", gap="small")
    _parts.set(known)
    return known[name]


def parts() -> dict[str, DeltaGenerator]:
    """What the bar is made of, with a row for pickers, for a part of the page that is drawn again alone (`hold`)."""
    place()
    return _parts.get()


def hold(known: dict[str, DeltaGenerator]) -> None:
    """Call where a part of the page begins that is drawn again alone: its pickers then stand where they stood."""
    _parts.set(known)


def choice(
    name: str, label: str, options: list[Any], words: Callable[[Any], str], help_text: str | None = None, **given: Any
) -> Any:
    """One picker of the bar; its value lies under `pick_NAME` in the session, where it is set before."""
    with place():
        return st.selectbox(
            label,
            options,
            index=None if st.session_state.get(f"pick_{name}") is None else 0,
            format_func=words,
            key=f"pick_{name}",
            help=help_text,
            width=WIDTHS.get(name, "stretch"),
            **given,
        )


def prompt_room() -> None:
    """Keeps the place beside the picker of the prompt for its text."""
    _parts.set(_parts.get({}) | {"prompt": place().container(key="context-prompt-room", width="content")})


def prompt_text(prompt: str) -> None:
    """A button that shows the whole prompt, letter by letter."""
    with place("prompt"), st.popover("Text", icon=":material/notes:", key="context-prompt"):
        if permission.button(
            "Add to story", permission.why_not(), icon=":material/bookmark_add:", key="context-prompt-slide"
        ):
            from app.figures.add_slide import (
                add_slide,  # that part asks app.navigation.selection for the theme, which has this bar
            )

            text = Passages(passages=(("", (Segment("same", prompt[:MOST_SIGNS]),)),))
            add_slide("The prompt", text, "What every run here has read.", "")
        with st.container(height=380, border=False, width=560):
            st.text(prompt[:MOST_SIGNS])
        if len(prompt) > MOST_SIGNS:
            st.caption(f"The first {MOST_SIGNS:,} of {len(prompt):,} characters.")


def say(words: str) -> None:
    """What is looked at, in one line under the pickers."""
    with place("line"):
        st.caption(words, help=MEANS)


def clicks(on_go: Callable[[dict[str, int]], None]) -> None:
    """Calls `on_go` with what a clicked cell names, such as `{"layer": 3, "head": 1}`."""
    with place():
        _clicks(key=CLICKS, on_go_change=lambda: on_go(_went()))


def _went() -> dict[str, int]:
    asked = st.session_state[CLICKS].get("go") or {}
    return {name: int(value) for name, value in asked.items() if name != "count"}


def one_line(*words: str) -> str:
    """The words that are not empty, with points between them."""
    return " · ".join(plain(word) for word in words if word)
