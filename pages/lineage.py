"""Lineage: what flowed into a slot, and how fast a token fades once its slot has taken in others."""

from __future__ import annotations

from functools import partial

import pandas as pd
import streamlit as st

from app.base.deferred import after_the_first_picture
from app.base.segmented import one_of
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.figures.figure import show
from app.run_views import page, view
from app.run_views.require_level import full_run
from app.session.url_numbers import asked_number
from app.session.url_state import keep
from kvlab.analysis.lineage import influence
from kvlab.analysis.lineage.tables import lineage_tree, merged_count, merged_slots
from kvlab.figures import influence as figures
from kvlab.figures import lineage as river
from kvlab.trace.reader import Run

OPEN_INFLUENCES = 4  # at 128k tokens and 17 steps one takes 18 MB
WIDTHS = {"weight x attention": "flow", "tokens carried": "votes"}


def main() -> None:
    page.heading(
        "Lineage",
        "A merged slot is a weighted sum of tokens. The **river** shows which flowed in, the curves how much of each "
        "is left after further merges: its **half-life**.",
    )
    run = full_run("merging", "the single events")
    if run is None:
        return
    view.at_place(run, partial(one_head, run))


def one_head(run: Run, layer: int, head: int) -> None:
    events = page.head_history(run, layer, head)[1]
    if not len(events) or not (events["target"] >= 0).any():
        st.info(
            f"**{plain(run.record.method)}** merged nothing in this head, so no slot has a lineage: choose another "
            "head, or a run of a method that merges (zsmerge, keepkv, kvmerger, pyramid-pool).",
            icon=":material/info:",
        )
        return
    one_slot(run, layer, head)
    after_the_first_picture(f"lineage-{run.record.run_id}", half_life, run, layer, head)


@st.fragment
def one_slot(run: Run, layer: int, head: int) -> None:
    step = view.run_scrubber(run)
    lineage, events, texts = page.head_history(run, layer, head)
    merged = merged_slots(lineage, step)
    if not merged:
        st.caption("No slot of this head stands for more than one token at this step.")
        return
    left, right, _ = st.columns([3, 3, 1], vertical_alignment="bottom")
    with left:
        slot = chosen_slot(merged, merged_count(lineage, step), texts)
    with right:
        width = one_of("Width of the river", list(WIDTHS), key="width")
    rivers, fading = st.columns([3, 2], gap="large")
    with rivers:
        draw_river(run, lineage, events, texts, slot, step, WIDTHS[width])
    with fading:
        draw_members(run, layer, head, slot, step)
    view.head_text(run, layer, head, step, "lineage-text", shown=slot)


def chosen_slot(merged: dict[int, int], every: int, texts: list[str]) -> int:
    """The merged slot the address names, or the one with the most votes; put there as the reader chooses.

    `merged` are those with most votes of `every`.
    """
    asked = asked_number("slot")
    wanted = asked if asked in merged else next(iter(merged))
    st.session_state["lineage-slot"] = wanted
    return st.selectbox(
        "Slot" if every <= len(merged) else f"Slot (the {len(merged)} of {every:,} with most votes)",
        list(merged),
        key="lineage-slot",
        on_change=remember_slot,
        format_func=lambda position: f"{position} “{texts[position].strip()}” · votes {merged[position]}",
    )


def remember_slot() -> None:
    keep("slot", st.session_state["lineage-slot"])


def draw_river(
    run: Run, lineage: page.Lineage, events: pd.DataFrame, texts: list[str], slot: int, step: int, width: str
) -> None:
    tree = influence.weighted_tree(lineage_tree(lineage, events, texts, slot, step), events)
    figure = river.lineage_river(tree, slot, texts[slot], page_theme(), width)
    reading = river.read_lineage_river(tree)
    show(figure, tree, reading, "lineage-river", page.file_name(run, f"river-slot-{slot}"), page.source(run))


def draw_members(run: Run, layer: int, head: int, slot: int, step: int) -> None:
    lineage, _, texts = page.head_history(run, layer, head)
    share, _ = influence_of(run, *page.stamp(run), layer, head)
    table = influence.members_over_steps(lineage, share, texts, slot, step)
    figure = figures.members_over_steps(table, slot, page_theme())
    reading = figures.read_members_over_steps(table)
    show(figure, table, reading, "lineage-members", page.file_name(run, f"shares-slot-{slot}"), page.source(run))


def half_life(run: Run, layer: int, head: int) -> None:
    st.subheader("Half-life of influence, this head")
    share, merges = influence_of(run, *page.stamp(run), layer, head)
    decay = influence.decay_by_merges(share, merges)
    half = influence.half_life(decay)
    figure = figures.influence_decay(decay, half, page_theme())
    reading = figures.read_influence_decay(decay, half)
    name = page.file_name(run, f"half-life-layer-{layer}-head-{head}")
    show(figure, decay, reading, "lineage-decay", name, page.source(run))


@st.cache_resource(max_entries=OPEN_INFLUENCES, show_spinner="Following every token")
def influence_of(_run: Run, path: str, written: int, layer: int, head: int) -> tuple:
    lineage, events, _ = page.head_history(_run, layer, head)
    return influence.influence(lineage, events)


main()
