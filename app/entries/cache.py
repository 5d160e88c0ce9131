"""Cache: all heads at once, the difference of two runs, one head, one slot, and the parts of the prompt."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from app import timeline, wall
from app.base.component import after_first_chart
from app.base.links import go, link
from app.base.text import plain
from app.base.widgets import attempt, one_of
from app.figures.figure import show_view
from app.navigation import page
from app.navigation.place import head_in_view, shared_token
from app.navigation.selection import current_comparison, current_run
from app.session.open_runs import BY_STAMP, expected_answer
from app.session.url_state import clear_page_param, get_param, params, remember, set_page_param, url_number, url_value
from kvlab.core.errors import UserError
from kvlab.tasks.rules import obeys, stated_rule
from kvlab.trace.reader import Run
from kvlab.views import lineage as lineage_views
from kvlab.views.frames.board import ExpectedAnswer, phase_texts
from kvlab.views.frames.compare import unique_labels
from kvlab.views.frames.lineage import merged_count, merged_slots, token_texts
from kvlab.views.frames.prompt_spans import Span, find_spans, parse_spans, write_spans
from kvlab.views.spans import why_unknown
from kvlab.views.wall import open_wall


def wall_page() -> None:
    if get_param("b") not in (None, "none"):  # links of before: the wall drew the difference itself
        go("two_runs", **params())
    page.heading(
        "All heads: the cache wall",
        "All heads at once: layers across, KV heads down. Each tile is the text, read like a page, in the colours of "
        "what its head has made of each token. Move through the steps, zoom in until you read the words, click a head"
        " to take it to the views below and to every other page.",
    )
    wall.draw()


def two_runs_page() -> None:
    page.heading(
        "Difference of two runs",
        "Which tokens only one of two runs still holds, in every head at once: **A** is the run, **B** the one beside"
        " it. Click a head to take it to the views below and to every other page.",
    )
    wall.draw(differs=True)


def timeline_page() -> None:
    page.heading(
        "One head",
        "Which token each slot holds at every step, and which slots were dropped or merged. Move through the steps "
        "with the slider, the play button or the arrow keys; hover over a word, a slot or the mosaic to highlight the"
        " words of one slot.",
    )
    run = current_run()
    if run is None:
        return
    page.explain_status(run)
    if run.record.level != "full":
        page.explain_level(run, "single events, so the fate of tokens is unknown")
        if not run.steps.empty:
            show_view("slots_by_head", run, "timeline-budget", focus=head_in_view(run))
        return
    page.at_place(run, partial(timeline.one_head, run))


def lineage_page() -> None:
    page.heading(
        "Lineage",
        "A merged slot is a weighted sum of tokens. The **river** shows which tokens were merged into it, the curves "
        "how much of each is left after further merges: its **half-life**.",
    )
    run = page.full_run("merging", "the single events")
    if run is None:
        return
    page.at_place(run, partial(lineage_of_head, run))


def spans_page() -> None:
    page.heading(
        "By part of the prompt",
        "Which part of the prompt does each method forget? Each number is the share of a part's tokens, over all "
        "layers and heads, that are **kept whole**, in a slot of their own; the strip below it has those merged with "
        "others too. Under the parts stands whether the answer is right.",
    )
    runs = current_comparison()
    if not runs or not (kept := comparable(runs)):
        return
    expected = expected_answer(kept)
    # The spans in the URL, else those found in the prompt; none, with a sentence, if its tokens do not spell it.
    spans: tuple[Span, ...] | None = None
    if written := url_value(SPANS_PARAM):
        try:
            spans = parse_spans(written, kept[0].record.prompt_tokens)
        except UserError as error:
            st.warning(plain(f"{error} Those found in the prompt are shown."))
    if spans is None:
        try:
            spans = _found(kept[0], kept[0].record.facts if expected is None else expected.facts)
        except UserError as error:
            st.error(plain(str(error)))
    if spans:
        parts_of_prompt(kept, spans, expected)
        # A form to name other spans, which the link then carries.
        run = kept[0]
        tokens = run.record.prompt_tokens
        with st.expander("Other spans"), st.form("spans-form", border=False):
            typed = st.text_area(
                "One span a line: a label, a colon, first and last token",
                write_spans(spans),
                height=240,
                key=f"spans-text-{run.record.run_id}-{hash(tuple(spans))}",
                help=f"As in rule 1: 12-20 or fact: 30-34,51. The prompt has the tokens 0 to {tokens - 1}. "
                "Give each token to one span at most; a token of no span is not shown.",
            )
            with st.container(horizontal=True):
                show = st.form_submit_button("Show these", key="spans-show")
                found = st.form_submit_button("As found in the prompt", key="spans-found")
        if found:
            clear_page_param(SPANS_PARAM)
            st.rerun()
        if show and attempt(lambda: parse_spans(typed, tokens)):
            set_page_param(SPANS_PARAM, write_spans(parse_spans(typed, tokens), ";"))
            st.rerun()


WIDTHS = {words: width for width, words in lineage_views.WIDTHS.items()}


def lineage_of_head(run: Run, layer: int, head: int) -> None:
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
    step = page.run_scrubber(run)
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
            on_change=lambda: set_page_param("slot", st.session_state["lineage-slot"]),
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
    page.head_text(run, layer, head, step, "lineage-text", shown=slot)


def half_life(run: Run, layer: int, head: int) -> None:
    st.header("Half-life of influence, this head")
    show_view("half_life", run, "lineage-decay", layer=layer, head=head)


SPANS_PARAM = "spans"
SPANS_CHART = "spans-chart"
EVERY_RUN = "every run"
BY_BUDGET = "by budget"
SPANS_NOTE = (
    "The parts are found in the text: system prompt, rules, turns, shots, paragraphs, marked facts and the question. A "
    "token counts for one part. Answers are each method's own text; the cache is the one that read the full cache's."
)


@st.fragment
def parts_of_prompt(runs: Sequence[Run], spans: tuple[Span, ...], expected: ExpectedAnswer | None) -> None:
    """The figure after the step in the bar."""
    budgets = pd.Series([run.record.method for run in runs]).value_counts()
    default = BY_BUDGET if budgets.max() >= 3 else EVERY_RUN
    chosen = one_of("View", (EVERY_RUN, BY_BUDGET), default, key="spans_view")
    name = "spans" if chosen == EVERY_RUN else "spans_by_budget"
    show_view(
        name,
        runs,
        SPANS_CHART,
        on_click=choose_clicked,
        step=page.run_scrubber(runs[-1]),
        spans=spans,
        expected_answer=expected,
        obeyed=_obeyed(runs, spans),
    )
    # Links to the other pages for the run and part that were clicked.
    run = next((run for run in runs if run.record.run_id == get_param("run")), None)
    span = next((span for span in spans if span.first == url_number("token")), None)
    if run is None or span is None:
        st.caption("Click a cell or a point to look into this part of this run on other pages.")
    else:
        linked = run.record.run_id
        place = str(span.first)
        with st.container(horizontal=True, vertical_alignment="center", gap="small", key="spans-links"):
            st.markdown(f"**{plain(span.label)}** in **{plain(run.record.label)}**:", width="content")
            link("wall", "All heads", run=linked, token=place)
            link("timeline", "One head", run=linked, token=place)
            link("autopsy", "Fate of a word", run=linked, span="-".join(map(str, span.ranges[0])))
    st.caption(plain(SPANS_NOTE))


def choose_clicked(cell: list[Any]) -> None:
    """A click on a cell chooses its run, on all pages, and the first token of its part."""
    if len(cell) == 3:  # not an answer
        remember("run", str(cell[0]))
        set_page_param("token", int(cell[1]))


def comparable(runs: Sequence[Run]) -> list[Run]:
    """The runs whose spans can be compared; one sentence on those that are left out."""
    kept: list[Run] = []
    reasons = []
    for run, name in zip(runs, unique_labels(runs), strict=True):
        reason = why_unknown(run, kept[0] if kept else run)
        try:
            if not reason:
                open_wall(run)
                kept.append(run)
        except UserError as error:
            reason = str(error).removeprefix(run.record.label).strip().rstrip(".")
        reasons += [f"{name} {reason}"] if reason else []
    if reasons:
        advice = "" if kept else " Record the comparison at level full: on the page New, or with kvlab compare."
        st.info(plain(f"Left out: {'; '.join(reasons)}.{advice}"), icon=":material/info:")
    return kept


_found = st.cache_data(max_entries=32, show_spinner=False, hash_funcs=BY_STAMP)(find_spans)


@st.cache_data(max_entries=32, show_spinner=False, hash_funcs=BY_STAMP)
def _obeyed(runs: Sequence[Run], spans: tuple[Span, ...]) -> dict[tuple[str, str], bool]:
    """Whether each run's own text obeys the rule that a span states, by run id and label."""
    texts = token_texts(runs[0].tokens, runs[0].record.prompt_tokens)
    words = {span.label: "".join(texts[place] for place in span.positions) for span in spans}
    rules = {label: rule for label, text in words.items() if (rule := stated_rule(text)) is not None}
    written = {run.record.run_id: "".join(phase_texts(run, "free")) for run in runs}
    return {
        (run_id, label): obeys(text, rule.spec) for run_id, text in written.items() for label, rule in rules.items()
    }
