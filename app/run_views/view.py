"""What pages of views ask the bar for: layer, head and keys, and the scrubber of a run; and one head's text."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.components.scrubber import scrubber
from app.components.tokentext import state_classes, tokentext
from app.navigation import context_bar as bar
from app.navigation.selection import chosen_step, last_step, pick_head, pick_layer, step_reason
from app.navigation.shortcuts import Keys, page_keys
from app.run_views import page
from app.session.fragments import drawn_alone, wait_until_sent
from app.session.open_runs import is_as_opened
from app.session.url_state import PLACE, catch_up, settled
from kvlab.analysis.lineage import states_at
from kvlab.analysis.lineage.fold import step_labels, steps_with_events
from kvlab.trace.reader import Run


def at_place(run: Run, draw: Callable[[int, int], None], *, steps: bool = True, more: Keys = ()) -> None:
    """Calls `draw` with the layer and head the reader chose, and for another one again, without the rest of the page.

    `steps` is whether the page has steps, `more` the keys of its own that the list of keys names.
    """
    _at_place(bar.parts(), run, draw, steps, more)


@st.fragment(key=PLACE)
def _at_place(
    known: dict[str, DeltaGenerator], run: Run, draw: Callable[[int, int], None], steps: bool, more: Keys
) -> None:
    alone = drawn_alone()
    bar.hold(known)
    if alone:
        catch_up()
        if not is_as_opened(run):
            st.rerun()
    layer, head = pick_layer(run), pick_head(run)
    page_keys(run, steps=steps, more=more)
    draw(layer, head)
    if alone:
        settled()
        wait_until_sent()


def run_scrubber(run: Run) -> int:
    """The step the reader is at, over all steps of the run, in the bar on top; an event is one of any head."""
    steps, events, words = _steps(run, *page.stamp(run))
    step = chosen_step(run, steps)
    scrubber(step, steps, events, words, identity=str(run.path), why=step_reason(run))
    return step


def head_text(run: Run, layer: int, head: int, step: int, key: str, shown: int | None = None) -> None:
    """The text of the run with the state of every token in this head at this step; `shown` is outlined and in view."""
    lineage, _, texts = page.head_history(run, layer, head)
    codes = states_at(lineage, step)
    chosen = None if shown is None else (shown, shown)
    title = f"{run.record.label}: what became of each token by step {step}"
    tokentext(
        texts, codes, state_classes(), identity=str(run.path), key=key, chosen=chosen, scroll=shown,
        title=title, source=page.source(run),
    )  # fmt: skip


def nothing_recorded(run: Run) -> bool:
    """Whether the run is full but has no steps, not yet or no more; says so on the page."""
    empty = run.select("steps", columns=["step"]).empty
    if empty:
        lost = "steps" in " ".join(run.problems)
        words = "The steps of this run were lost." if lost else "Nothing was recorded yet."
        st.info(words, icon=":material/info:")
    return empty


@st.cache_data(max_entries=16, show_spinner=False)
def _steps(_run: Run, path: str, written: int) -> tuple[list[int], list[int], list[str]]:
    table: pd.DataFrame = _run.select("steps", columns=["step", "evicted", "merged"])
    steps, events = steps_with_events(table)
    steps = steps or list(range(last_step(_run) + 1))  # the table was lost, or the level records no steps
    return steps, events, step_labels(_run.tokens, _run.record.prompt_tokens, steps)
