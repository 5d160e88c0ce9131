"""The step slider of the bar, with play, arrow keys and a jump to the next event."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.base.component import component
from app.session.url_state import go_to

KEY = "scrubber"
HTML = """
<div class="kv-scrubber" data-testid="scrubber">
  <div class="kv-steps" role="group" aria-label="Step" data-part="bar"></div>
</div>
"""

_component = component("scrubber", HTML, "step-bar.css")


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
