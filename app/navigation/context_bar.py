"""The bar at the top of every page: pickers of prompt, run, layer, head and step, and one line about the runs shown.

`app/main.py` opens it before the page runs. Pickers appear as the page requests a run, a layer, a head or a step from
`app.navigation.selection`. A click on a chart's cell whose `customdata` names a layer, head or step goes there.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.base.component import component
from app.base.text import plain, shorten
from app.new_run.prompt_view import facts_as_html
from kvlab.browser import read_static
from kvlab.common.formatting import join_words, model_title
from kvlab.report.views import Passages
from kvlab.views.frames.textdiff import Segment

KEY = "context-bar"
CLICKS = "context-clicks"
STYLES = ("access.css", "context-bar.css", "small-window.css", "sidebar.css")
MAX_CHARACTERS = 20_000  # of a prompt that are sent to the browser
LONGEST_FACT = 120  # characters, in the caption above the prompt
WIDTHS = {"comparison": 266, "repeat": 104, "layer": 88, "head": 96, "step": 110}
MEANS = "All numbers on this page are from one prompt: means are over its heads, layers, steps or tokens."

# The bar's containers by name. A fragment sets those of the full run again when it is rerun.
CONTAINERS: ContextVar[dict[str, DeltaGenerator]] = ContextVar("context_bar")

_clicks = component("context-bar")


def begin() -> None:
    """Reserve the bar's place; it stays empty on a page without pickers."""
    st.html(f"<style>{read_static(*STYLES)}</style>")
    CONTAINERS.set({"bar": st.container(key=KEY, gap=None)})


def row(name: str = "pickers") -> DeltaGenerator:
    """The row of pickers, or the line below it (`line`)."""
    containers = dict(CONTAINERS.get({}))
    if "bar" not in containers:  # a page that runs alone
        containers["bar"] = st.container(key=KEY, gap=None)
    if name not in containers:
        with containers["bar"]:
            containers[name] = st.container(
                key=f"context-{name}", horizontal=True, vertical_alignment="bottom", gap="small"
            )
    CONTAINERS.set(containers)
    return containers[name]


def prompt_place() -> DeltaGenerator:
    """The place of the prompt's text, beside the pickers."""
    pickers = row()
    containers = CONTAINERS.get()
    if "prompt" not in containers:
        beside = pickers.container(key="context-prompt-room", width="content")
        containers = containers | {"prompt": beside}
        CONTAINERS.set(containers)
    return containers["prompt"]


def picker(
    name: str, label: str, options: list[Any], words: Callable[[Any], str], help_text: str | None = None, **further: Any
) -> Any:
    """A picker of the bar; its value is `pick_NAME` in the session and must be set there before."""
    with row():
        return st.selectbox(
            label,
            options,
            index=None if st.session_state.get(f"pick_{name}") is None else 0,
            format_func=words,
            key=f"pick_{name}",
            help=help_text,
            width=WIDTHS.get(name, "stretch"),
            **further,
        )


def prompt_text(prompt: str, answer: str = "", facts: Sequence[tuple[int, int]] = ()) -> None:
    """A button that shows the prompt as plain text, with the expected answer and its facts (start, stop) marked."""
    with prompt_place(), st.popover("Text", icon=":material/notes:", key="context-prompt"):
        if st.button("Add to story", icon=":material/bookmark_add:", key="context-prompt-slide"):
            from app.figures.add_slide import add_slide  # which imports this module

            text = Passages(passages=(("", (Segment("same", prompt[:MAX_CHARACTERS]),)),))
            add_slide("The prompt", text, "The prompt of every run shown here.", "")
        if answer:
            words = [f"“{plain(shorten(prompt[start:stop], LONGEST_FACT))}”" for start, stop in facts]
            depends = f", which depends on {join_words(words)}, marked below" if words else ""
            st.caption(f"The expected answer is **{plain(shorten(answer))}**{depends}.")
        with st.container(height=380, border=False, width=560):
            if facts:
                st.html(facts_as_html(prompt[:MAX_CHARACTERS], facts))
            else:
                st.text(prompt[:MAX_CHARACTERS])
        if len(prompt) > MAX_CHARACTERS:
            st.caption(f"The first {MAX_CHARACTERS:,} of {len(prompt):,} characters.")


def caption(*parts: str, model: str = "") -> None:
    """The line below the pickers, from the parts that are not empty.

    Its tooltip has the path of the `model`, if it is one.
    """
    loaded = f"  \nThe model's folder is {plain(model[:200])}." if model_title(model) != model else ""
    with row("line"):
        st.caption(" · ".join(plain(part) for part in parts if part), help=f"{MEANS}{loaded}")


def clicks(on_go: Callable[[dict[str, int]], None]) -> None:
    """Call `on_go` with the target of a clicked cell, such as `{"layer": 3, "head": 1}`."""
    with row():
        _clicks(
            key=CLICKS,
            on_go_change=lambda: on_go(
                {name: int(at) for name, at in (st.session_state[CLICKS].get("go") or {}).items() if name != "count"}
            ),
        )
