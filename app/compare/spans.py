"""The spans of a comparison's prompt: found or written by the user, their shares in every run, and the answers."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.base.text import plain
from app.base.widgets import attempt
from app.session.open_runs import BY_STAMP
from app.session.url_state import clear_page_param, set_page_param, url_value
from kvlab.analysis.comparison import span_shares as analysis
from kvlab.analysis.comparison.prompt_spans import Span, find_spans, parse_spans, write_spans
from kvlab.core.errors import UserError
from kvlab.tasks.rules import obeys, stated_rule
from kvlab.trace.reader import Run
from kvlab.views.frames.board import ExpectedAnswer, phase_texts
from kvlab.views.frames.compare import unique_labels
from kvlab.views.frames.lineage import token_texts
from kvlab.views.frames.wall import Wall, wall_of

TEXT = "spans-text"
PARAM = "spans"
OPEN_WALLS = 16


def comparable(runs: Sequence[Run]) -> tuple[list[Run], list[Wall]]:
    """The runs whose spans can be compared, and their walls; one sentence on those that are left out."""
    kept: list[Run] = []
    walls = []
    reasons = []
    for run, name in zip(runs, unique_labels(runs), strict=True):
        reason = analysis.why_unknown(run, kept[0] if kept else run)
        try:
            if not reason:
                walls.append(_wall(run))
                kept.append(run)
        except UserError as error:
            reason = str(error).removeprefix(run.record.label).strip().rstrip(".")
        reasons += [f"{name} {reason}"] if reason else []
    if reasons:
        advice = "" if kept else " Record the comparison at level full: on the page New run, or with kvlab compare."
        st.info(plain(f"Left out: {'; '.join(reasons)}.{advice}"), icon=":material/info:")
    return kept, walls


@st.cache_resource(max_entries=OPEN_WALLS, show_spinner="Reading the events of every run", hash_funcs=BY_STAMP)
def _wall(run: Run) -> Wall:
    return wall_of(run)


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


def edit_spans(run: Run, spans: Sequence[Span]) -> None:
    """A form to name other spans, which the link then carries."""
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


def frame_of(
    runs: Sequence[Run], walls: Sequence[Wall], spans: Sequence[Span], step: int, wanted: ExpectedAnswer | None
) -> pd.DataFrame:
    """The frame of the figures: shares of every span in every run, with the answers and the rules obeyed."""
    frame = analysis.spans_by_run(runs, walls, spans, step)
    verdicts = _verdicts(runs, wanted)
    obeyed = _obeyed(runs, tuple(spans))
    pairs = zip(frame["run_id"], frame["span"], strict=True)
    return frame.assign(
        verdict=frame["run_id"].map(verdicts).fillna(""),
        obeyed=pd.Series([obeyed.get(pair) for pair in pairs], dtype="boolean"),
    )


@st.cache_data(max_entries=32, show_spinner=False, hash_funcs=BY_STAMP)
def _verdicts(runs: Sequence[Run], wanted: ExpectedAnswer | None) -> dict[str, str]:
    return dict(analysis.answer_verdicts(runs, wanted))


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
