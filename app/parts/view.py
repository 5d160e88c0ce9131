"""What the pages of views begin with: layer, head and keys in one row, the scrubber of a run, one head's text."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.parts import page
from app.parts.keys import page_keys
from app.parts.scrubber import scrubber
from app.parts.tokentext import state_classes, tokentext
from app.state import last_step, pick_head, pick_layer, theme
from kvlab.analysis.lineage import states_at
from kvlab.analysis.steps import step_words, steps_with_events
from kvlab.trace.reader import Run


def place(run: Run, *, steps: bool = True) -> tuple[int, int]:
    """The layer and head the reader chose, and the list of keys."""
    left, middle, right = st.columns([1, 1, 4], vertical_alignment="bottom")
    with left:
        layer = pick_layer(run)
    with middle:
        head = pick_head(run)
    with right:
        page_keys(run, steps=steps)
    return layer, head


def run_scrubber(run: Run, first: int | None = None) -> int:
    """The step the reader is at, over all steps of the run; an event is one of any head."""
    steps, events, words = _steps(run, *page.stamp(run))
    return scrubber(steps, events, words, identity=str(run.path), first=first)


def head_text(run: Run, layer: int, head: int, step: int, key: str, shown: int | None = None) -> None:
    """The text of the run with the state of every token in this head at this step; `shown` is outlined and in view."""
    lineage, _, texts = page.head_history(run, layer, head)
    codes = states_at(lineage, step)
    chosen = None if shown is None else (shown, shown)
    tokentext(texts, codes, state_classes(theme()), identity=str(run.path), key=key, chosen=chosen, scroll=shown)


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
    return steps, events, step_words(_run.tokens, _run.record.prompt_tokens, steps)
