"""The board on a page: what is asked for, the grid of verdicts, the map behind a cell, and a form to add an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from app.base import permission
from app.base.links import link
from app.base.text import plain, shorten
from app.base.theme import theme as page_theme
from app.compare.facts import FactKeys, fact_picker
from app.compare.restore import button as killed_button
from app.components.wordpicker import Spans
from app.figures.figure import show
from app.navigation.selection import runs_root
from app.run_views import page
from app.run_views.require_level import warning
from app.session.url_state import asked_for, keep, keep_listed
from kvlab.analysis.comparison import board as analysis
from kvlab.analysis.comparison.facts import fact_fates, head_shares
from kvlab.common.errors import UserError
from kvlab.figures import board as figures
from kvlab.figures.base.words import byte_size, plural
from kvlab.results.sources import comparison_origin
from kvlab.tasks.shipped_samples import shipped_samples
from kvlab.trace.reader import Run
from kvlab.trace.schema import RunRecord
from kvlab.trace.user_labels import Labels, load_labels, save_answer

CHART, CELL = "board-chart", "board-cell"
LONG_TEXT = 50_000  # characters of a prompt whose words are not sent before somebody wants to click them


@dataclass(frozen=True)
class Board:
    """All that is shown of a comparison with an answer: `table` a row a run, `frame` that of the figure."""

    asked: analysis.AnswerCheck
    table: pd.DataFrame
    frame: pd.DataFrame
    readers: pd.DataFrame


def board_of(runs: Sequence[Run]) -> Board | None:
    """The board of a comparison; None where nobody has said what the answer is."""
    comparison = runs[0].record.comparison_id
    try:
        labels = load_labels(runs_root(), comparison)
    except UserError as error:
        st.error(plain(str(error)))
        labels = Labels()
    wanted = analysis.expected_answer(runs, labels)
    if wanted is None:
        return None
    return _board(runs, tuple(page.stamp(run) for run in runs), tuple(run.record.status for run in runs), wanted)


@st.cache_data(max_entries=16, show_spinner="Scoring the runs")
def _board(_runs: Sequence[Run], stamps: tuple, statuses: tuple, wanted: analysis.ExpectedAnswer) -> Board:
    asked = analysis.check_answer(_runs, wanted)
    table = analysis.verdicts(_runs, asked)
    return Board(asked, table, analysis.board(_runs, asked, table), analysis.readers(_runs, asked))


def board_section(runs: Sequence[Run], board: Board) -> bool:
    """The question and the full cache's own answer, the grid, and the map of the chosen cell; whether a chart is."""
    asked = board.asked
    reference(asked, board.table)
    if asked.problem:
        st.warning(plain(asked.problem))
    if board.frame.empty:
        return False
    reading = figures.read_board(board.frame)
    figure = figures.board(board.frame, page_theme())
    drawn = show(figure, board.frame, reading, CHART, "board", comparison_origin(runs), on_click=choose_clicked)
    cell_section(runs, board)
    return drawn


def reference(asked: analysis.AnswerCheck, table: pd.DataFrame) -> None:
    """The answer wanted, who wrote it, and the fact; over it a warning where the full cache fails too."""
    verdict = asked.reference
    if verdict.kind in ("nearly", "wrong"):
        warning()
    wrote = {
        "right": "writes it",
        "unfinished": "has not written its own text yet",
    }.get(verdict.kind, f"writes “{plain(verdict.wrote)}”")
    count = len(asked.positions)
    fact = f"The fact behind it is {plural(count, 'token')} of the prompt" if count else "The prompt has no fact marked"
    assumed = " (where the prompt holds the answer; none was marked)" if asked.expected.assumed and count else ""
    found = [
        f"**{plain(row.label)}** ({byte_size(row.live_bytes)})" for row in analysis.correct_runs(table).itertuples()
    ]
    verb = "gets" if len(found) == 1 else "get"
    right = f"Of the compressed runs {', '.join(found)} {verb} it right" if found else "No compressed run gets it right"
    asked_for = f"Asked for: **{plain(shorten(asked.expected.words))}**. The full cache {wrote}."
    st.markdown(f"{asked_for} {right}. {fact}{assumed}.")


def choose_clicked() -> None:
    """A click on any mark of a cell: its run becomes the cell that is looked into."""
    points = st.session_state[CHART].selection.points
    if points and (told := points[0].get("customdata")):
        keep("cell", told[0], CELL)


def remember_cell() -> None:
    keep_listed("cell", CELL)


def cell_section(runs: Sequence[Run], board: Board) -> None:
    """One cell by name, with what leads on from it: who killed it, the autopsy, and the map of its heads."""
    cells = board.frame.drop_duplicates("run_id").set_index("run_id")
    known = cells[cells["kept"].notna()]
    run_id, lines = chosen_cell(cells, known), {line.Index: line for line in cells.itertuples()}
    run, cell = next(run for run in runs if run.record.run_id == run_id), cells.loc[run_id]
    reader = board.readers.iloc[0] if len(board.readers) else None
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="board-cell-row"):
        st.selectbox(
            "Look into (or click a cell)",
            list(cells.index),
            format_func=lambda name: f"{lines[name].label} · {figures.verdict_text(lines[name], 24)}",
            key=CELL,
            on_change=remember_cell,
            width=330,
        )
        if cell["verdict"] in ("nearly", "wrong") and board.asked.reference.kind == "right":
            killed_button(run, f"killed-{run_id}")
        if run_id in known.index:
            fact = f"{int(board.asked.positions[0])}-{int(board.asked.positions[-1])}"
            place = {} if reader is None else {"layer": str(int(reader["layer"])), "head": str(int(reader["head"]))}
            link("autopsy", "Autopsy, token by token", run=run_id, span=fact, **place)
    if run_id in known.index:
        heads_section(run, board, str(cell["label"]), reader)
    elif len(board.asked.positions):
        st.caption("What became of the fact's tokens was not recorded: record the comparison at level full.")
    else:
        st.caption("No fact is marked: click its words below to see what became of its tokens.")


def chosen_cell(cells: pd.DataFrame, known: pd.DataFrame) -> str:
    """The run that was clicked or that the address names, else a telling one, if possible with a known fact."""
    chosen = asked_for("cell")
    if chosen not in cells.index:
        chosen = analysis.most_interesting_run((known if len(known) else cells).reset_index())
    st.session_state[CELL] = chosen
    return str(chosen)


def heads_section(run: Run, board: Board, label: str, reader: pd.Series | None) -> None:
    """Layers and heads of one run: where the fact's tokens are kept, with the head that reads them outlined."""
    fate = st.segmented_control(
        "Share", list(figures.FATES), default="kept", key="board_fate", bind="query-params", required=True
    )
    heads = _heads(run, *page.stamp(run), tuple(board.asked.positions.tolist()), board.asked.step)
    at = None if reader is None else (int(reader["layer"]), int(reader["head"]))
    figure = figures.fact_by_head(heads, label, fate, at, page_theme())
    file, reading = page.file_name(run, "fact-by-head"), figures.read_fact_by_head(heads, reader, board.asked.moment)
    show(figure, heads, reading, "board-heads", file, page.source(run))


@st.cache_data(max_entries=32, show_spinner=False)
def _heads(_run: Run, path: str, written: int, positions: tuple[int, ...], step: int) -> pd.DataFrame:
    return head_shares(fact_fates(_run, positions, step))


def answer_form(runs: Sequence[Run], known: Board | None) -> None:
    """Says that no answer is known and takes one, or lets the known one be changed; kept beside the runs."""
    record = runs[0].record
    if known is None:
        st.info(
            "Nobody has said what the right answer is, so the rankings below say how alike the caches are, not which "
            "of them still answers. Add the answer: the runs are scored at once from what they recorded.",
            icon=":material/help:",
        )
        sample = next((sample for sample in shipped_samples() if sample.text == record.prompt), None)
        _under_a_title("The answer and its facts", record, sample.answer if sample and sample.answer else "", (), True)
        return
    wanted = known.asked.expected
    _under_a_title("Another answer or fact", record, wanted.answer, () if wanted.assumed else wanted.facts, False)


def _under_a_title(title: str, record: RunRecord, answer: str, facts: Spans, expanded: bool) -> None:
    """The form under a title. With a long text, all of whose words go to the browser, it is made once it is opened."""
    if len(record.prompt) <= LONG_TEXT:
        with st.expander(title, expanded):
            _form(record, answer, facts)
        return
    with st.expander(title, key="answer_open", bind="query-params", on_change="rerun") as form:
        if form.open:
            _form(record, answer, facts)


def _form(record: RunRecord, answer: str, facts: Spans) -> None:
    typed = st.text_input("Expected answer", answer, key=f"answer-{record.comparison_id}", width=420)
    st.caption("Facts, optional: without them the place where the prompt holds the answer is taken.")
    marked = None
    try:
        marked = fact_picker(record.prompt, FactKeys(record.comparison_id), facts)
    except UserError as error:
        st.error(plain(str(error)))
    why, key = permission.why_not_change([record.owner]), f"score-{record.comparison_id}"
    if not permission.button("Score the runs", why, icon=":material/rule:", key=key) or marked is None:
        return
    try:
        save_answer(runs_root(), record.comparison_id, record.prompt, typed, marked)
    except UserError as error:
        st.error(plain(str(error)))
        return
    st.rerun()
