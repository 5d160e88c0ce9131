"""The linked view of one head, scrubber, slot grid and token text: one component, so hovering stays in the browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from app.parts.packing import UNPACK, packed
from kvlab.analysis.lineage.fold import NEVER, Lineage
from kvlab.analysis.lineage.mosaic import mosaic
from kvlab.analysis.lineage.tables import event_steps
from kvlab.figures.palette import STATE_COLOURS, STATE_LABELS, STATE_NAMES, SURFACES, Theme, pick
from kvlab.figures.template import INK

STATIC = Path(__file__).parent / "static"
SCRIPTS = (
    "charts.js",
    "focus.js",
    "blocks.js",
    "tokenstrip-head.js",
    "tokenstrip-pictures.js",
    "tokenstrip-words.js",
    "tokenstrip.js",
)
MOSAIC_ROWS = 300
HTML = """
<div class="kv-strip" tabindex="-1" data-testid="tokenstrip">
  <div class="bar" role="group" aria-label="Step">
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
  <div class="river">
    <canvas data-part="mosaic" role="img" aria-label="State of every token at every step"></canvas>
    <div class="playhead" data-part="playhead"></div>
  </div>
  <div class="axis"><span>↓ tokens of the text, first on top</span><span>steps →</span></div>
  <div class="legend" data-part="legend"></div>
  <div class="detail" data-part="detail"></div>
  <div class="halves">
    <div>
      <h4>Slots by position (numbers: votes)</h4>
      <canvas class="grid" data-part="grid" role="img" aria-label="Slots of this head"></canvas>
    </div>
    <div>
      <h4>Text</h4>
      <div class="text" data-part="text" tabindex="0" aria-label="Text of the run"></div>
    </div>
  </div>
</div>
"""

_component = st.components.v2.component(
    "kvlab_tokenstrip",
    html=HTML,
    css=(STATIC / "tokenstrip.css").read_text(encoding="utf-8"),
    js="\n".join([UNPACK, *((STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS)]),
)


def tokenstrip(
    lineage: Lineage,
    texts: list[str],
    *,
    identity: str,
    step: int,
    selected: int | None,
    masses: tuple[np.ndarray, np.ndarray] | None,
    theme: Theme,
    key: str,
    on_step: Callable[[], None],
    on_token: Callable[[], None],
    why: str = "",
    phases: list[str] | None = None,
) -> Any:
    """Mounts the view; the result's `step` is where the reader stopped and `token` the position just clicked.

    `identity` names run, layer and head: while it stays the same the view keeps its place. `selected` is a position to
    keep lit. `masses` are the true and the slot masses at `step`, shown for the word under the pointer. `why` is the
    reason for a step nobody chose. `phases` says of each step what it is, where they are not the steps of a run.
    """
    data = history(lineage, texts) | _masses(masses, lineage.tokens)
    data |= {
        "identity": identity,
        "step": step,
        "selected": selected,
        "why": why,
        "phases": phases,
        "massesStep": None if masses is None else step,
        "colours": {state: pick(pair, theme) for state, pair in STATE_COLOURS.items()},
        "labels": list(STATE_NAMES.values()),
        "meanings": list(STATE_LABELS.values()),
        "paper": SURFACES[theme],
        "ink": INK[theme],
    }
    return _component(key=key, data=packed(data), on_step_change=on_step, on_token_change=on_token)


def history(lineage: Lineage, texts: list[str]) -> dict[str, Any]:
    """What the browser needs to derive every step: the vectors of the lineage, with -1 for never."""
    picture = mosaic(lineage, MOSAIC_ROWS)
    rows, columns = picture.shape
    return {
        "texts": texts,
        **{name: _or_never(getattr(lineage, name)) for name in ("birth", "leave", "death", "absorb")},
        "parent": lineage.parent.astype(np.int32),
        "steps": lineage.steps.tolist(),
        "eventSteps": event_steps(lineage).tolist(),
        "mosaic": {"rows": rows, "columns": columns},
        "codes": picture.to_numpy(np.uint8),
    }


def _or_never(steps: np.ndarray) -> np.ndarray:
    """Steps in as few bytes as hold them."""
    known = np.where(steps == NEVER, -1, steps)
    return known.astype(np.int16 if known.max(initial=0) <= np.iinfo(np.int16).max else np.int32)


def _masses(masses: tuple[np.ndarray, np.ndarray] | None, tokens: int) -> dict[str, np.ndarray]:
    if masses is None:
        return {}
    true, slot = (mass[:tokens].astype(np.float32) for mass in masses)
    return {"trueMass": true, "slotMass": slot}
