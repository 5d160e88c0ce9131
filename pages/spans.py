"""Prompt spans: what each method and budget has left of every part of a prompt, beside the answers."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.base.links import link
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.base.widgets import one_of
from app.compare.spans import comparable, edit_spans, frame_of, spans_of
from app.figures.figure import show
from app.navigation.selection import current_comparison
from app.run_views import page, view
from app.session.open_runs import expected_answer
from app.session.url_state import get_param, remember, set_page_param, url_number
from kvlab.analysis.comparison.prompt_spans import Span
from kvlab.analysis.comparison.span_shares import several_budgets
from kvlab.figures import prompt_spans as figures
from kvlab.figures import span_panels
from kvlab.trace.reader import Run
from kvlab.views.base.provenance import of_comparison
from kvlab.views.frames.board import ExpectedAnswer
from kvlab.views.frames.wall import Wall

CHART = "spans-chart"
MAP = "every run"
LINES = "by budget"
MORE = (
    "The parts are found in the text: system prompt, rules, turns, shots, paragraphs, marked facts and the question. A "
    "token counts for one part. Answers are each method's own text; the cache is the one that read the full cache's."
)


def main() -> None:
    page.heading(
        "Prompt spans",
        "Which part of the prompt does each method forget? Each number is the share of a part's tokens, over all "
        "layers and heads, that still have a slot (**held**): all of them in the full cache, fewer at small budgets. "
        "Beside it stands whether the answer is right.",
    )
    runs = current_comparison()
    if not runs:
        return
    kept, walls = comparable(runs)
    if not kept:
        return
    wanted = expected_answer(kept)
    if spans := spans_of(kept[0], wanted):
        parts_of_prompt(kept, walls, spans, wanted)
        edit_spans(kept[0], spans)


@st.fragment
def parts_of_prompt(
    runs: Sequence[Run], walls: Sequence[Wall], spans: Sequence[Span], wanted: ExpectedAnswer | None
) -> None:
    """The figure after the step in the bar."""
    frame = frame_of(runs, walls, spans, view.run_scrubber(runs[-1]), wanted)
    default = LINES if several_budgets(frame) else MAP
    chosen = one_of("View", (MAP, LINES), default, key="spans_view")
    if chosen == MAP:
        figure = figures.span_map(frame, page_theme())
        caption = figures.caption_spans(frame)
    else:
        figure = span_panels.spans_over_budgets(frame, page_theme())
        caption = span_panels.caption_spans_over_budgets(frame)
    name = f"spans-{runs[0].record.comparison_id}"
    show(figure, frame, caption, CHART, name, of_comparison(runs), on_click=choose_clicked)
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


main()
