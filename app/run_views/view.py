"""The fragment of a page that shows one layer and head, the step scrubber, and the text of one head."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.base.component import component
from app.components.tokentext import state_classes, tokentext
from app.navigation import context_bar as bar
from app.navigation.place import chosen_step, last_step, pick_head, pick_layer, step_reason
from app.navigation.shortcuts import Keys, page_keys
from app.run_views import page
from app.session.open_runs import BY_STAMP, is_as_opened
from app.session.streamlit_internals import is_fragment_run, wait_until_sent
from app.session.url_state import PLACE_FRAGMENT, apply_pending, go_to, mark_drawn
from kvlab.browser import read_static
from kvlab.trace.reader import Run
from kvlab.views.frames.lineage import states_at, step_labels, steps_with_events

KEY = "scrubber"

_component = component("scrubber", read_static("scrubber.html"), "step-bar.css")


def scrubber(
    step: int, steps: Sequence[int], events: Sequence[int], texts: Sequence[str], *, identity: str, why: str = ""
) -> None:
    """Mount the scrubber at `step`; the URL parameter `step` follows the user.

    `steps` are those recorded, `events` those with evictions or merges, `texts` a word or two about each step, `why`
    the reason for a default step. Mount it in the fragment that draws the step: it sticks below the bar.
    """
    data = {
        "steps": list(steps),
        "events": list(events),
        "texts": list(texts),
        "identity": identity,
        "step": step,
        "why": why,
    }
    with st.container(key="context-step"):
        _component(key=KEY, data=data, on_step_change=_remember)


def _remember() -> None:
    if (step := st.session_state[KEY].get("step")) is not None:
        go_to(step=int(step))


def at_place(run: Run, draw: Callable[[int, int], None], *, steps: bool = True, more: Keys = ()) -> None:
    """Call `draw` with the chosen layer and head; when they change, only this fragment is rerun.

    `steps` is whether the page has steps, `more` its additional keyboard shortcuts.
    """
    _at_place(bar.containers(), run, draw, steps, more)


@st.fragment(key=PLACE_FRAGMENT)
def _at_place(
    containers: dict[str, DeltaGenerator], run: Run, draw: Callable[[int, int], None], steps: bool, more: Keys
) -> None:
    is_fragment = is_fragment_run()
    bar.restore(containers)
    if is_fragment:
        apply_pending()
        if not is_as_opened(run):
            st.rerun()
    layer = pick_layer(run)
    head = pick_head(run)
    page_keys(run, steps=steps, more=more)
    draw(layer, head)
    if is_fragment:
        mark_drawn()
        wait_until_sent()


def run_scrubber(run: Run) -> int:
    """The chosen step, from the scrubber in the bar; its events are those of all heads."""
    steps, events, words = _steps(run)
    step = chosen_step(run, steps)
    scrubber(step, steps, events, words, identity=str(run.path), why=step_reason(run))
    return step


def head_text(run: Run, layer: int, head: int, step: int, key: str, shown: int | None = None) -> None:
    """The text with the state of every token in this head at this step; `shown` is outlined and scrolled into view."""
    lineage, _, texts = page.head_history(run, layer, head)
    codes = states_at(lineage, step)
    chosen = None if shown is None else (shown, shown)
    title = f"{run.record.label}: the fate of each token by step {step}"
    tokentext(
        texts,
        codes,
        state_classes(),
        identity=str(run.path),
        key=key,
        chosen=chosen,
        scroll=shown,
        title=title,
        source=page.source(run),
    )


def nothing_recorded(run: Run) -> bool:
    """Whether a run of level full has no steps, with a sentence on why."""
    empty = run.select("steps", columns=["step"]).empty
    if empty:
        lost = "steps" in " ".join(run.problems)
        words = "The steps of this run were lost." if lost else "Nothing is recorded yet."
        st.info(words, icon=":material/info:")
    return empty


@st.cache_data(max_entries=16, show_spinner=False, hash_funcs=BY_STAMP)
def _steps(run: Run) -> tuple[list[int], list[int], list[str]]:
    steps, events = steps_with_events(run.select("steps", columns=["step", "evicted", "merged"]))
    steps = steps or list(range(last_step(run) + 1))  # the table was lost, or the level records no steps
    return steps, events, step_labels(run.tokens, run.record.prompt_tokens, steps)
