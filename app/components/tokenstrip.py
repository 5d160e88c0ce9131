"""The linked view of one head: scrubber, slot grid and token text, one component so that hovering needs no server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from app.base.component import component
from app.components.payload import texts_for
from app.figures.export_menu import Offer, show_title
from kvlab.browser import pack_payload, read_static
from kvlab.report.views import history_of
from kvlab.views.base.palette import Theme
from kvlab.views.base.provenance import FigureSource
from kvlab.views.frames.lineage import Lineage
from kvlab.views.timeline import Masses, history_data, mass_data, state_looks

READING = "Which token each slot holds at this step, and what happened to the others."

_component = component("tokenstrip", read_static("tokenstrip.html"), "step-bar.css", "tokenstrip.css")


def tokenstrip(
    lineage: Lineage,
    texts: list[str],
    *,
    identity: str,
    step: int,
    selected: int | None,
    masses: Masses | None,
    theme: Theme,
    key: str,
    on_step: Callable[[], None],
    on_token: Callable[[], None],
    why: str = "",
    phases: list[str] | None = None,
    title: str = "What the cache holds",
    source: FigureSource = "",
) -> Any:
    """Mount the view under its title and menu.

    The result's `step` is where the user stopped and `token` the position just clicked. The view keeps its scroll
    position while `identity` (run, layer and head) is the same. `selected` is a position to highlight. `masses` are the
    true and the slot masses at `step`, shown for the word under the pointer. `why` is the reason for a default step.
    `phases` labels the steps if they are not those of a run.
    """
    build = partial(history_of, lineage, texts, step, selected, phases)
    show_title(Offer(title, build, READING, source, has_picture=True, steps=len(lineage.steps)), key)
    data = texts_for(key, texts) | history_data(lineage) | state_looks(theme) | mass_data(masses, step)
    data |= {
        "identity": identity,
        "step": step,
        "selected": selected,
        "why": why,
        "phases": phases,
    }
    return _component(key=key, data=pack_payload(data), on_step_change=on_step, on_token_change=on_token)
