"""Lineage: the tokens merged into a slot, and how their influence decays with further merges."""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st

from app.base.lazy_views import after_first_chart
from app.base.text import plain
from app.base.widgets import one_of
from app.figures.view import show_view
from app.navigation.place import shared_token
from app.run_views import page, view
from app.run_views.require_level import full_run
from app.session.url_state import set_page_param, url_number
from kvlab.trace.reader import Run
from kvlab.views import lineage as lineage_views
from kvlab.views.frames.lineage import merged_count, merged_slots

WIDTHS = {words: width for width, words in lineage_views.WIDTHS.items()}


def draw() -> None:
    """The slots of the head in the bar that hold several tokens."""
    run = full_run("merging", "the single events")
    if run is None:
        return
    view.at_place(run, partial(one_head, run))


def one_head(run: Run, layer: int, head: int) -> None:
    events = page.head_history(run, layer, head)[1]
    if not len(events) or not (events["target"] >= 0).any():
        st.info(
            f"**{plain(run.record.method)}** merged nothing in this head, so no slot has a lineage. Choose another "
            "head, or a run of a method that merges (zsmerge, keepkv, kvmerger, pyramid-pool).",
            icon=":material/info:",
        )
        return
    one_slot(run, layer, head)
    after_first_chart(f"lineage-{run.record.run_id}", half_life, run, layer, head)


@st.fragment
def one_slot(run: Run, layer: int, head: int) -> None:
    step = view.run_scrubber(run)
    lineage, _, texts = page.head_history(run, layer, head)
    merged = merged_slots(lineage, step)
    if not merged:
        st.caption("No slot of this head represents more than one token at this step.")
        return
    # The slot of the token chosen on another page in this text.
    token = shared_token([run.record.comparison_id])
    shared = None if token is None or token >= lineage.tokens else lineage.slot_of(token, step)
    left, right, _ = st.columns([3, 3, 1], vertical_alignment="bottom")
    with left:
        # The merged slot in the URL, else `shared`, else the one with the most votes, and a picker to change it.
        every = merged_count(lineage, step)
        requested = [slot for slot in (url_number("slot"), shared) if slot in merged]
        st.session_state["lineage-slot"] = requested[0] if requested else next(iter(merged))
        slot = st.selectbox(
            "Slot" if every <= len(merged) else f"Slot (the {len(merged)} of {every:,} with the most votes)",
            list(merged),
            key="lineage-slot",
            on_change=remember_slot,
            format_func=lambda position: f"{position} “{texts[position].strip()}” · votes {merged[position]}",
        )
    with right:
        width = one_of("Width of the river", list(WIDTHS), key="width")
    rivers, fading = st.columns([3, 2], gap="large")
    place: dict[str, Any] = {"layer": layer, "head": head, "step": step, "slot": slot}
    with rivers:
        show_view("river", run, "lineage-river", width=WIDTHS[width], **place)
    with fading:
        show_view("members", run, "lineage-members", **place)
    view.head_text(run, layer, head, step, "lineage-text", shown=slot)


def remember_slot() -> None:
    set_page_param("slot", st.session_state["lineage-slot"])


def half_life(run: Run, layer: int, head: int) -> None:
    st.header("Half-life of influence, this head")
    show_view("half_life", run, "lineage-decay", layer=layer, head=head)
