"""The step shown, the same on every page: a slider with play, arrow keys and a jump to the next event."""

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
    """Mounts the scrubber at `step`; where the reader goes from there is kept in the address as `step`.

    `steps` are those recorded, `events` those in which something left, `texts` one word or two about each step, `why`
    the reason for a step nobody chose. Put it into the fragment that draws what follows the step: it stands under the
    bar on top of the page, wherever it is mounted.
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
