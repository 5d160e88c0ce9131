"""Spans of a comparison's prompt: what every run keeps of each, and a form to name others."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.base.links import link
from app.base.text import plain
from app.base.widgets import attempt, one_of
from app.figures.view import show_view
from app.navigation.selection import current_comparison
from app.run_views import view
from app.session.open_runs import BY_STAMP, expected_answer
from app.session.url_state import clear_page_param, get_param, remember, set_page_param, url_number, url_value
from kvlab.core.errors import UserError
from kvlab.tasks.rules import obeys, stated_rule
from kvlab.trace.reader import Run
from kvlab.views.frames.board import ExpectedAnswer, phase_texts
from kvlab.views.frames.compare import unique_labels
from kvlab.views.frames.lineage import token_texts
from kvlab.views.frames.prompt_spans import Span, find_spans, parse_spans, write_spans
from kvlab.views.spans import why_unknown
from kvlab.views.wall import open_wall

TEXT = "spans-text"
PARAM = "spans"
CHART = "spans-chart"
MAP = "every run"
LINES = "by budget"
MORE = (
    "The parts are found in the text: system prompt, rules, turns, shots, paragraphs, marked facts and the question. A "
    "token counts for one part. Answers are each method's own text; the cache is the one that read the full cache's."
)


def draw() -> None:
    """The parts of the comparison's prompt."""
    runs = current_comparison()
    if not runs or not (kept := comparable(runs)):
        return
    expected = expected_answer(kept)
    if spans := spans_of(kept[0], expected):
        parts_of_prompt(kept, spans, expected)
        # A form to name other spans, which the link then carries.
        run = kept[0]
        tokens = run.record.prompt_tokens
        with st.expander("Other spans"), st.form("spans-form", border=False):
            typed = st.text_area(
                "One span a line: a label, a colon, first and last token",
                write_spans(spans),
                height=240,
                key=f"{TEXT}-{run.record.run_id}-{hash(tuple(spans))}",
                help=f"As in rule 1: 12-20 or fact: 30-34,51. The prompt has the tokens 0 to {tokens - 1}. "
                "Give each token to one span at most; a token of no span is not shown.",
            )
            with st.container(horizontal=True):
                show = st.form_submit_button("Show these", key="spans-show")
                found = st.form_submit_button("As found in the prompt", key="spans-found")
        if found:
            clear_page_param(PARAM)
            st.rerun()
        if show and attempt(lambda: parse_spans(typed, tokens)):
            set_page_param(PARAM, write_spans(parse_spans(typed, tokens), ";"))
            st.rerun()


@st.fragment
def parts_of_prompt(runs: Sequence[Run], spans: tuple[Span, ...], expected: ExpectedAnswer | None) -> None:
    """The figure after the step in the bar."""
    budgets = pd.Series([run.record.method for run in runs]).value_counts()
    default = LINES if budgets.max() >= 3 else MAP
    chosen = one_of("View", (MAP, LINES), default, key="spans_view")
    name = "spans" if chosen == MAP else "spans_by_budget"
    show_view(
        name,
        runs,
        CHART,
        on_click=choose_clicked,
        step=view.run_scrubber(runs[-1]),
        spans=spans,
        expected_answer=expected,
        obeyed=_obeyed(runs, spans),
    )
    open_elsewhere(runs, spans)
    st.caption(plain(MORE))


def open_elsewhere(runs: Sequence[Run], spans: Sequence[Span]) -> None:
    """Links to the other pages for the run and part that were clicked."""
    run = next((run for run in runs if run.record.run_id == get_param("run")), None)
    span = next((span for span in spans if span.first == url_number("token")), None)
    if run is None or span is None:
        st.caption("Click a cell or a point to look into this part of this run on other pages.")
        return
    name = run.record.run_id
    place = str(span.first)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="spans-links"):
        st.markdown(f"**{plain(span.label)}** in **{plain(run.record.label)}**:", width="content")
        link("wall", "Cache wall", run=name, token=place)
        link("timeline", "Cache timeline", run=name, token=place)
        link("autopsy", "Autopsy, token by token", run=name, span="-".join(map(str, span.ranges[0])))


def choose_clicked() -> None:
    """A click on a cell chooses its run, on all pages, and the first token of its part."""
    points = st.session_state[CHART].selection.points
    cell = list(points[0].get("customdata") or []) if points else []
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


def spans_of(run: Run, wanted: ExpectedAnswer | None) -> tuple[Span, ...]:
    """The spans in the URL, else those found in the prompt; none, with a sentence, if its tokens do not spell it."""
    written = url_value(PARAM)
    if written:
        try:
            return parse_spans(written, run.record.prompt_tokens)
        except UserError as error:
            st.warning(plain(f"{error} Those found in the prompt are shown."))
    try:
        return _found(run, run.record.facts if wanted is None else wanted.facts)
    except UserError as error:
        st.error(plain(str(error)))
        return ()


@st.cache_data(max_entries=32, show_spinner=False, hash_funcs=BY_STAMP)
def _found(run: Run, facts: tuple[tuple[int, int], ...]) -> tuple[Span, ...]:
    return find_spans(run, facts)


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
