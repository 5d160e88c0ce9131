"""The step shown, the same on every page: a slider with play, arrow keys and a jump to the next event."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

STATIC = Path(__file__).parent / "static"
KEY = "scrubber"
HTML = """
<div class="kv-scrubber" role="group" aria-label="Step" data-testid="scrubber">
  <button data-part="first" aria-label="First step" title="First step (Home)"></button>
  <button data-part="back" aria-label="Step back" title="Step back (left arrow)"></button>
  <button data-part="play" aria-label="Play" title="Play or pause (space)"></button>
  <button data-part="next" aria-label="Step forward" title="Step forward (right arrow)"></button>
  <button data-part="last" aria-label="Last step" title="Last step (End)"></button>
  <button data-part="event" title="Next step in which a slot left (n)">next event</button>
  <input data-part="slider" type="range" min="0" step="1" aria-label="Step">
  <span class="step" data-part="step"></span>
  <span class="phase" data-part="phase"></span>
</div>
"""

_component = st.components.v2.component(
    "kvlab_scrubber",
    html=HTML,
    css=(STATIC / "scrubber.css").read_text(encoding="utf-8"),
    js="\n".join((STATIC / name).read_text(encoding="utf-8") for name in ("focus.js", "scrubber.js")),
)


def scrubber(
    steps: Sequence[int], events: Sequence[int], texts: Sequence[str], *, identity: str, first: int | None = None
) -> int:
    """The step the reader is at, kept in the address as `step`; `first` where the address names none (else the last).

    `steps` are those recorded, `events` those in which something left, `texts` one word or two about each step. Put it
    into the fragment that draws what follows the step.
    """
    step = chosen_step(steps, steps[-1] if first is None else first)
    data = {"steps": list(steps), "events": list(events), "texts": list(texts), "identity": identity, "step": step}
    _component(key=KEY, data=data, on_step_change=_remember)
    return step


def chosen_step(steps: Sequence[int], first: int) -> int:
    """The step the address names, or `first`; one sentence where the run has no such step."""
    asked = st.query_params.get("step")
    if asked is None:
        return first
    if asked.isdecimal() and int(asked) in steps:
        return int(asked)
    st.warning(f"Step `{asked}` is not a step of this run: choose one of {steps[0]} to {steps[-1]}.")
    return first


def _remember() -> None:
    if (step := st.session_state[KEY].get("step")) is not None:
        st.query_params["step"] = str(int(step))
