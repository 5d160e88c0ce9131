"""Cache timeline: the fate of every token in one layer and KV head, step by step."""

from collections.abc import Callable
from functools import partial
from typing import Any

import streamlit as st

from app.base.component import after_first_chart, component, flush, on_value
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.base.widgets import one_of
from app.components import texts_for
from app.figures import tables
from app.figures.export_menu import Offer, show_title
from app.figures.figure import frame_of, show_view
from app.navigation import page
from app.navigation.place import chosen_step, chosen_token, step_reason
from app.session.url_state import go_to, in_url, set_page_param, set_page_param_from, url_number
from kvlab.browser import pack_payload, read_static
from kvlab.core.errors import UserError
from kvlab.report.views import history_of
from kvlab.trace.reader import Run
from kvlab.views.base import FigureSource, Theme, of_run
from kvlab.views.decision import replay
from kvlab.views.frames.lineage import (
    Lineage,
    check_slots,
    events_with_texts,
    merged_count,
    merged_slots,
    slot_table,
)
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


STRIP = "timeline-strip"
PLAYER = "decision-strip"
SLOT = "timeline-slot"
TAB = "tab"
FLOW = "What flowed into a slot"


def one_head(run: Run, layer: int, head: int) -> None:
    if page.head_steps(run, layer, head).empty:
        st.info("Nothing is recorded for this layer and head yet.")
        return
    if one_of("What to play", ["the run", "the prompt's decision"], key="play") == "the run":
        linked_view(run, layer, head)
    else:
        # The player of the decision: evictions by ascending score.
        lineage, _, texts = page.head_history(run, layer, head)
        try:
            table = frame_of("decision", run, layer=layer, head=head)
        except UserError as error:
            st.info(plain(str(error)), icon=":material/info:")
        else:
            history = replay(lineage, table)
            frame = url_number("frame")
            evicted = [int((history.leave <= step).sum()) for step in history.steps]
            phases = [f"{count:,} of {evicted[-1]:,} evicted, lowest scores first" for count in evicted]
            phases[0] = (
                "the prompt was read, and nothing is evicted" if evicted[-1] else "this head keeps the whole prompt"
            )
            tokenstrip(
                history,
                texts[: history.tokens],
                identity=f"{run.path}/{layer}/{head}/decision",
                step=frame if frame is not None and frame < len(history.steps) else 0,
                selected=None,
                masses=None,
                theme=page_theme(),
                key=PLAYER,
                on_step=partial(on_value, PLAYER, "step", lambda step: set_page_param("frame", int(step))),
                on_token=partial(on_value, PLAYER, "token", lambda token: set_page_param("token", int(token))),
                phases=phases,
                title=f"{run.record.label}: the prompt's decision",
                source=of_run(run),
            )
    after_first_chart(f"timeline-{run.record.run_id}", the_rest, run, layer, head)


def the_rest(run: Run, layer: int, head: int) -> None:
    st.header("The prompt's decision")
    token = url_number("token")
    if show_view("decision", run, "decision", layer=layer, head=head, token=token) is not None:
        show_view("decision_budgets", run, "decision-heads", token=token, focus=(layer, head))
    lineage = page.head_history(run, layer, head)[0]
    st.header("The whole run")
    show_view("timeline", run, "timeline-mosaic", layer=layer, head=head)
    if len(lineage.steps) > 1:
        show_view("states", run, "timeline-states", layer=layer, head=head)
    if run.sparse_layers:
        show_view("steps_read", run, "timeline-read", layer=layer, head=head)
    # Whether the history folded from the events agrees with the cache's own slot counts.
    table = check_slots(lineage, page.head_steps(run, layer, head))
    wrong = table[~table["agree"]]
    if wrong.empty:
        st.caption(
            f"The number of slots derived from the events agrees with the cache's own count at all {len(table)} steps."
        )
    else:
        first = wrong.iloc[0]
        st.warning(
            f"At {len(wrong)} of {len(table)} steps the events do not agree with the cache's own slot count (first at "
            f"step {first['step']}: {first['folded']} slots against {first['recorded']}): do not trust this picture."
        )


@st.fragment
def linked_view(run: Run, layer: int, head: int) -> None:
    lineage, events, texts = page.head_history(run, layer, head)
    step = chosen_step(run, lineage.steps.tolist())
    masses = page.masses_at(run, layer, head, step)
    token = chosen_token(run.record.comparison_id, lineage.tokens)
    slot = None if token is None else lineage.slot_of(token, step)
    if masses is None:
        page.explain_no_masses(run, layer, head, step)
    tokenstrip(
        lineage,
        texts,
        identity=f"{run.path}/{layer}/{head}/{lineage.steps[-1]}",
        step=step,
        selected=token,
        why=step_reason(run),
        masses=masses,
        theme=page_theme(),
        key=STRIP,
        on_step=partial(on_value, STRIP, "step", lambda step: go_to(step=int(step))),
        on_token=partial(remember_token, merges=bool((events["target"] >= 0).any())),
        title=f"{run.record.label}: what the cache holds",
        source=of_run(run),
    )
    flush()
    slots, step_events, flow = st.tabs(["Slots at this step", "Events of this step", FLOW], **in_url(TAB))
    # Only the open tab is drawn: the other two would take most of the time of a step.
    with slots:
        if slots.open:
            # If there are too many for a table, the most important ones.
            table = slot_table(lineage, texts, step, masses, tables.MOST_ROWS)
            count = int(lineage.alive(step).sum())
            if count > len(table):
                shown = f"The {len(table):,} of {count:,} slots"
                st.caption(f"{shown} that represent the most tokens and get the most attention.")
            tables.show_table(table, f"Slots of layer {layer}, head {head} after step {step}", height=360)
    with step_events:
        if step_events.open:
            table = events_with_texts(run.head_events(layer, head, step), texts)
            if table.empty:
                st.caption(f"Nothing was dropped or merged in this head in step {step}.")
            else:
                tables.show_table(table, f"Events of step {step}", height=360)
    with flow:
        if flow.open:
            # The river into the slot of the chosen token, else into one with most votes.
            merged = merged_slots(lineage, step)
            options = list(merged) if slot is None or slot in merged else [slot, *merged]
            if not options:
                st.caption("No slot of this head represents more than one token at this step.")
                return
            st.session_state[SLOT] = slot if slot is not None else options[0]
            every = merged_count(lineage, step)
            listed = "" if every <= len(merged) else f" among the {len(merged)} of {every:,} with the most votes"
            chosen = st.selectbox(
                f"Slot (click a word or a slot above, or choose here{listed})",
                options,
                key=SLOT,
                on_change=set_page_param_from,
                args=("token", SLOT),
                format_func=lambda position: (
                    f"{position} “{texts[position].strip()}” · votes {merged.get(position, 1)}"
                ),
            )
            show_view("river", run, "timeline-river", layer=layer, head=head, step=step, slot=chosen)


def remember_token(merges: bool) -> None:
    """Put the clicked token into the URL; open the lineage tab if slots were merged."""
    if (token := st.session_state[STRIP].get("token")) is not None:
        set_page_param("token", int(token), SLOT)
        if merges:
            st.session_state[TAB] = FLOW
