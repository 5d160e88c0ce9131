"""Cache timeline: what became of every token of one layer and KV head, step by step."""

from __future__ import annotations

from functools import partial

import pandas as pd
import streamlit as st

from app.base.deferred import after_the_first_picture, let_it_out
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.components.tokenstrip import tokenstrip
from app.components.tokentext import along_text
from app.figures.figure import show
from app.figures.tables import MOST_ROWS, show_table
from app.navigation.selection import chosen_step, current_run, step_reason
from app.run_views import page, view
from app.run_views.decision import decision_section, played_decision
from app.session.url_numbers import asked_number
from app.session.url_state import go_to, keep, keep_listed
from kvlab.analysis.comparison.memory import budgets_by_layer
from kvlab.analysis.lineage import Lineage
from kvlab.analysis.lineage.mosaic import mosaic, state_counts
from kvlab.analysis.lineage.tables import (
    check_slots,
    events_with_texts,
    lineage_tree,
    merged_count,
    merged_slots,
    slot_table,
)
from kvlab.figures import lineage as river
from kvlab.figures import memory as memory_figures
from kvlab.figures import timeline
from kvlab.trace.reader import Run

STRIP = "timeline-strip"
SLOT = "timeline-slot"
TAB, FLOW = "tab", "What flowed into a slot"


def main() -> None:
    page.heading(
        "Cache timeline",
        "Which token each slot holds at every step, and what was evicted or merged into what. "
        "Move through the steps with the slider, play, or the arrow keys; hover a word, a slot or the mosaic to light "
        "the words of one slot.",
    )
    run = current_run()
    if run is None:
        return
    page.explain_status(run)
    if run.record.level != "full":
        show_without_events(run)
        return
    view.at_place(run, partial(one_head, run))


def one_head(run: Run, layer: int, head: int) -> None:
    if page.head_steps(run, layer, head).empty:
        st.info("Nothing was recorded for this layer and head yet.")
        return
    plays = st.segmented_control(
        "What to play",
        ["the run", "the prompt's decision"],
        default="the run",
        key="play",
        bind="query-params",
        required=True,
    )
    if plays == "the run":
        linked_view(run, layer, head)
    else:
        played_decision(run, layer, head)
    after_the_first_picture(f"timeline-{run.record.run_id}", the_rest, run, layer, head)


def the_rest(run: Run, layer: int, head: int) -> None:
    decision_section(run, layer, head, asked_token())
    whole_history(run, layer, head)


def show_without_events(run: Run) -> None:
    page.explain_level(run, "the single events, so which token went where is not known")
    if run.steps.empty:
        return
    budgets = budgets_by_layer(run.steps)
    show(
        memory_figures.budget_anatomy(budgets, page_theme()),
        budgets,
        memory_figures.read_budget_anatomy(budgets),
        "timeline-budget",
        page.file_name(run, "slots-by-head"),
        page.source(run),
    )


@st.fragment
def linked_view(run: Run, layer: int, head: int) -> None:
    lineage, events, texts = page.head_history(run, layer, head)
    step = chosen_step(run, lineage.steps.tolist())
    masses = page.masses_at(run, layer, head, step)
    slot = chosen_slot(lineage, step)
    if masses is None:
        page.explain_no_masses(run, layer, head, step)
    tokenstrip(
        lineage,
        texts,
        identity=f"{run.path}/{layer}/{head}/{lineage.steps[-1]}",
        step=step,
        selected=chosen_token(lineage),
        why=step_reason(run),
        masses=masses,
        theme=page_theme(),
        key=STRIP,
        on_step=remember_step,
        on_token=partial(remember_token, merges=bool((events["target"] >= 0).any())),
        title=f"{run.record.label}: what the cache holds",
        source=page.source(run),
    )
    let_it_out()
    slots, happened, flow = st.tabs(["Slots at this step", "Events of this step", FLOW], key=TAB, bind="query-params")
    # Only the open one is made: the other two would take most of the time of a step.
    with slots:
        if slots.open:
            slots_table(lineage, texts, step, masses, f"Slots of layer {layer}, head {head} after step {step}")
    with happened:
        if happened.open:
            events_table(run, layer, head, texts, step)
    with flow:
        if flow.open:
            lineage_of_slot(run, lineage, events, texts, step, slot)


def slots_table(lineage: Lineage, texts: list[str], step: int, masses: page.Masses | None, name: str) -> None:
    """The slots; of more than a table holds those that matter most."""
    table, count = slot_table(lineage, texts, step, masses, MOST_ROWS), int(lineage.alive(step).sum())
    if count > len(table):
        st.caption(f"Of {count:,} slots the {len(table):,} that stand for most tokens and get most attention.")
    show_table(table, name, height=360)


def events_table(run: Run, layer: int, head: int, texts: list[str], step: int) -> None:
    table = events_with_texts(run.events_at(layer, head, step), texts)
    if table.empty:
        st.caption(f"Nothing left this head in step {step}.")
        return
    show_table(table, f"Events of step {step}", height=360)


def lineage_of_slot(
    run: Run, lineage: Lineage, events: pd.DataFrame, texts: list[str], step: int, slot: int | None
) -> None:
    merged = merged_slots(lineage, step)
    options = list(merged) if slot is None or slot in merged else [slot, *merged]
    if not options:
        st.caption("No slot of this head stands for more than one token at this step.")
        return
    st.session_state[SLOT] = slot if slot is not None else options[0]
    every = merged_count(lineage, step)
    listed = "" if every <= len(merged) else f" among the {len(merged)} of {every:,} with most votes"
    chosen = st.selectbox(
        f"Slot (click a word or a slot above, or choose here{listed})",
        options,
        key=SLOT,
        on_change=remember_slot,
        format_func=lambda position: f"{position} “{texts[position].strip()}” · votes {merged.get(position, 1)}",
    )
    tree = lineage_tree(lineage, events, texts, chosen, step)
    if tree.empty:
        st.caption(plain(river.read_lineage_river(tree)))
        return
    figure = river.lineage_river(tree, chosen, texts[chosen], page_theme())
    show(
        figure,
        tree,
        river.read_lineage_river(tree),
        "timeline-river",
        page.file_name(run, f"slot-{chosen}"),
        page.source(run),
    )


def whole_history(run: Run, layer: int, head: int) -> None:
    lineage, _, texts = page.head_history(run, layer, head)
    st.subheader("The whole run")
    name = f"layer-{layer}-head-{head}"
    picture, counts = mosaic(lineage), state_counts(lineage)
    show(
        along_text(timeline.token_mosaic(picture, texts, page_theme()), "y"),
        picture,
        timeline.read_token_mosaic(picture, counts),
        "timeline-mosaic",
        page.file_name(run, f"mosaic-{name}"),
        page.source(run),
    )
    if len(lineage.steps) > 1:
        show(
            along_text(timeline.state_totals(counts, page_theme()), offset=run.record.prompt_tokens - 1),
            counts,
            timeline.read_state_totals(counts),
            "timeline-states",
            page.file_name(run, f"states-{name}"),
            page.source(run),
        )
    trust(check_slots(lineage, page.head_steps(run, layer, head)))


def trust(table: pd.DataFrame) -> None:
    """Whether the picture, which is folded from the events, agrees with what the cache itself counted."""
    wrong = table[~table["agree"]]
    if wrong.empty:
        st.caption(f"Folding the events gives the number of slots the cache counted at each of the {len(table)} steps.")
    else:
        first = wrong.iloc[0]
        st.warning(
            f"At {len(wrong)} of {len(table)} steps the events do not add up to what the cache counted (first at "
            f"step {first['step']}: {first['folded']} slots against {first['recorded']}): do not trust this picture."
        )


def chosen_slot(lineage: Lineage, step: int) -> int | None:
    """The slot at `step` of the token the URL names, if it lives in one."""
    token = chosen_token(lineage)
    slot = -1 if token is None else int(lineage.owners(step)[token])
    return slot if slot >= 0 else None


def chosen_token(lineage: Lineage) -> int | None:
    """The position of the token the URL names, if the run has it."""
    asked = asked_token()
    return asked if asked is not None and asked < lineage.tokens else None


def asked_token() -> int | None:
    """The position of the token the URL names."""
    return asked_number("token")


def remember_step() -> None:
    if (step := st.session_state[STRIP].get("step")) is not None:
        go_to(step=int(step))


def remember_token(merges: bool) -> None:
    """The clicked token goes into the address; where slots flow into others, that is what opens."""
    if (token := st.session_state[STRIP].get("token")) is not None:
        keep("token", int(token), SLOT)
        if merges:
            st.session_state[TAB] = FLOW


def remember_slot() -> None:
    keep_listed("token", SLOT)


main()
