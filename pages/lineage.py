"""Lineage: the tokens merged into a slot, and how their influence decays with further merges."""

from __future__ import annotations

from functools import partial

import pandas as pd
import streamlit as st

from app.base.lazy_views import after_first_chart
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.base.widgets import one_of
from app.navigation.token_cursor import shared_token
from app.run_views import page, view
from app.run_views.require_level import full_run
from app.session.open_runs import BY_STAMP
from app.session.url_state import set_page_param, url_number
from kvlab.analysis.lineage import influence
from kvlab.figures import lineage as figures
from kvlab.trace.reader import Run
from kvlab.views.frames.lineage import Lineage, lineage_tree, merged_count, merged_slots

OPEN_INFLUENCES = 4  # 18 MB each at 128k tokens and 17 steps
WIDTHS = {words: width for width, words in figures.WIDTHS.items()}


def main() -> None:
    page.heading(
        "Lineage",
        "A merged slot is a weighted sum of tokens. The **river** shows which tokens were merged into it, the curves "
        "how much of each is left after further merges: its **half-life**.",
    )
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
    lineage, events, texts = page.head_history(run, layer, head)
    merged = merged_slots(lineage, step)
    if not merged:
        st.caption("No slot of this head represents more than one token at this step.")
        return
    left, right, _ = st.columns([3, 3, 1], vertical_alignment="bottom")
    with left:
        slot = chosen_slot(merged, merged_count(lineage, step), texts, shared_slot(run, lineage, step))
    with right:
        width = one_of("Width of the river", list(WIDTHS), key="width")
    rivers, fading = st.columns([3, 2], gap="large")
    with rivers:
        draw_river(run, lineage, events, texts, slot, step, WIDTHS[width])
    with fading:
        draw_members(run, layer, head, slot, step)
    view.head_text(run, layer, head, step, "lineage-text", shown=slot)


def chosen_slot(merged: dict[int, int], every: int, texts: list[str], shared: int | None) -> int:
    """The merged slot in the URL, else `shared`, else the one with the most votes, and a picker to change it.

    `merged` are those with most votes of `every` merged slots.
    """
    requested = [slot for slot in (url_number("slot"), shared) if slot in merged]
    st.session_state["lineage-slot"] = requested[0] if requested else next(iter(merged))
    return st.selectbox(
        "Slot" if every <= len(merged) else f"Slot (the {len(merged)} of {every:,} with the most votes)",
        list(merged),
        key="lineage-slot",
        on_change=remember_slot,
        format_func=lambda position: f"{position} “{texts[position].strip()}” · votes {merged[position]}",
    )


def shared_slot(run: Run, lineage: Lineage, step: int) -> int | None:
    """The slot at `step` of the token chosen on another page in this text; None if it has none."""
    token = shared_token([run.record.comparison_id])
    return None if token is None or token >= lineage.tokens else lineage.slot_of(token, step)


def remember_slot() -> None:
    set_page_param("slot", st.session_state["lineage-slot"])


def draw_river(
    run: Run, lineage: Lineage, events: pd.DataFrame, texts: list[str], slot: int, step: int, width: str
) -> None:
    tree = influence.weighted_tree(lineage_tree(lineage, events, texts, slot, step), events)
    figure = figures.merge_sankey(tree, slot, texts[slot], page_theme(), width)
    caption = figures.caption_merge_sankey(tree)
    page.show_figure(run, figure, tree, caption, "lineage-river", f"river-slot-{slot}")


def draw_members(run: Run, layer: int, head: int, slot: int, step: int) -> None:
    lineage, _, texts = page.head_history(run, layer, head)
    share, _ = influence_of(run, layer, head)
    table = influence.members_over_steps(lineage, share, texts, slot, step)
    figure = figures.members_over_steps(table, slot, page_theme())
    caption = figures.caption_members_over_steps(table)
    page.show_figure(run, figure, table, caption, "lineage-members", f"shares-slot-{slot}")


def half_life(run: Run, layer: int, head: int) -> None:
    st.header("Half-life of influence, this head")
    share, merges = influence_of(run, layer, head)
    decay = influence.decay_by_merges(share, merges)
    half = influence.half_life(decay)
    if len(decay) < 2:  # one point is a sentence, not a curve
        st.caption(plain(figures.caption_influence_decay(decay, half)))
        return
    figure = figures.influence_decay(decay, half, page_theme())
    caption = figures.caption_influence_decay(decay, half)
    page.show_figure(run, figure, decay, caption, "lineage-decay", f"half-life-layer-{layer}-head-{head}")


@st.cache_resource(max_entries=OPEN_INFLUENCES, hash_funcs=BY_STAMP, show_spinner="Following every token")
def influence_of(run: Run, layer: int, head: int) -> tuple:
    lineage, events, _ = page.head_history(run, layer, head)
    return influence.influence(lineage, events)


main()
