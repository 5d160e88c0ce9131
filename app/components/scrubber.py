"""Step scrubber, shared by all pages: a slider with play, arrow keys and a jump to the next event."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.session.url_state import go_to
from kvlab.browser import read_static

KEY = "scrubber"
HTML = """
<div class="kv-scrubber" data-testid="scrubber">
  <div class="kv-steps" role="group" aria-label="Step" data-part="bar"></div>
</div>
"""

_component = st.components.v2.component(
    "kvlab_scrubber",
    html=HTML,
    css=read_static("step-bar.css"),
    js=read_static("scrubber.js"),
)


def scrubber(
    step: int, steps: Sequence[int], events: Sequence[int], texts: Sequence[str], *, identity: str, why: str = ""
) -> None:
    """Show the scrubber at `step`; the user's step goes into the URL as `step`.

    Call it in the fragment that draws what depends on the step: CSS moves it below the context bar from anywhere.

    Args:
        steps: the recorded steps.
        events: steps in which a slot was evicted or merged.
        texts: a short caption per step.
        identity: names what is stepped through; the scrubber goes to `step` when it changes.
        why: the reason for a step that the user did not choose.
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
