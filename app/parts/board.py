"""The board on a page: what is asked for, the grid of verdicts, the map behind a cell, and a form to add an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from app.parts import page
from app.parts.figure import show
from app.parts.killed import button as killed_button
from app.parts.links import link
from app.parts.reference import warning
from app.parts.text import plain, shorten
from app.state import runs_root
from app.state import theme as page_theme
from kvlab.analysis import board as analysis
from kvlab.analysis.facts import fact_fates, head_shares
from kvlab.atlas.sources import comparison_origin
from kvlab.errors import UserError
from kvlab.figures import board as figures
from kvlab.figures.words import byte_size
from kvlab.tasks.shipped_samples import shipped_samples
from kvlab.trace.labels import Labels, load_labels, save_answer
from kvlab.trace.reader import Run

CHART, CELL = "board-chart", "board-cell"


@dataclass(frozen=True)
class Board:
    """All that is shown of a comparison with an answer: `table` a row a run, `frame` that of the figure."""

    asked: analysis.Asked
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
    wanted = analysis.wanted(runs, labels)
    if wanted is None:
        return None
    return _board(runs, tuple(page.stamp(run) for run in runs), tuple(run.record.status for run in runs), wanted)


@st.cache_data(max_entries=16, show_spinner="Scoring the runs")
def _board(_runs: Sequence[Run], stamps: tuple, statuses: tuple, wanted: analysis.Wanted) -> Board:
    asked = analysis.ask(_runs, wanted)
    table = analysis.verdicts(_runs, asked)
    return Board(asked, table, analysis.board(_runs, asked, table), analysis.readers(_runs, asked))


def board_section(runs: Sequence[Run], board: Board) -> None:
    """The question and the full cache's own answer, the grid, and the map of the chosen cell."""
    asked = board.asked
    reference(asked, board.table)
    if asked.problem:
        st.warning(plain(asked.problem))
    if not board.frame.empty:
        reading = figures.read_board(board.frame)
        figure = figures.board(board.frame, page_theme())
        show(figure, board.frame, reading, CHART, "board", comparison_origin(runs), on_click=choose_clicked)
        who_killed(runs, board)
        cell_section(runs, board)


def reference(asked: analysis.Asked, table: pd.DataFrame) -> None:
    """The answer wanted, who wrote it, and the fact; over it a warning where the full cache fails too."""
    verdict = asked.reference
    if verdict.kind in ("nearly", "wrong"):
        warning()
    wrote = {
        "right": "writes it",
        "unfinished": "has not written its own text yet",
    }.get(verdict.kind, f"writes “{plain(verdict.wrote)}”")
    count = len(asked.positions)
    fact = f"The fact behind it is {count} tokens of the prompt" if count else "No fact is marked in the prompt"
    assumed = " (where the prompt holds the answer; none was marked)" if asked.wanted.assumed and count else ""
    rows = analysis.right_ones(table).itertuples()
    got = ", ".join(f"**{plain(row.label)}** ({byte_size(row.live_bytes)})" for row in rows)
    right = f"Of the compressed runs {got} get it right" if got else "No compressed run gets it right"
    asked_for = f"Asked for: **{plain(shorten(asked.wanted.answer))}**. The full cache {wrote}."
    st.markdown(f"{asked_for} {right}. {fact}{assumed}.")


def who_killed(runs: Sequence[Run], board: Board) -> None:
    """For every run that lost the answer a button that looks for what would have kept it."""
    table = board.table
    lost = set(table.loc[(table["method"] != "full") & table["verdict"].isin(["nearly", "wrong"]), "run_id"])
    if not lost or board.asked.reference.kind != "right":
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown("**Who killed it?**", width="content")
        for run in runs:
            if run.record.run_id in lost:
                killed_button(run, f"killed-{run.record.run_id}", plain(run.record.label))


def choose_clicked() -> None:
    """A click on any mark of a cell: its run becomes the cell that is looked into."""
    points = st.session_state[CHART].selection.points
    if points and (told := points[0].get("customdata")):
        st.session_state[CELL] = told[0]
        remember_cell()


def remember_cell() -> None:
    st.query_params["cell"] = st.session_state[CELL]


def cell_section(runs: Sequence[Run], board: Board) -> None:
    """Layers and heads of one run: where the fact's tokens are kept, with the head that reads them outlined."""
    cells = board.frame.drop_duplicates("run_id")
    inside = cells[cells["kept"].notna()]
    if inside.empty:
        marked = len(board.asked.positions) > 0
        unknown = "What became of the fact's tokens was not recorded: record the comparison at level full."
        st.caption(unknown if marked else "No fact is marked: name its words below to see what became of its tokens.")
        return
    labels = dict(zip(inside["run_id"], inside["label"], strict=True))
    if st.session_state.get(CELL) not in labels:
        st.session_state[CELL] = st.query_params.get("cell", "")
    if st.session_state[CELL] not in labels:
        st.session_state[CELL] = analysis.telling_cell(inside)
    left, right, more = st.columns([2, 2, 2], vertical_alignment="bottom")
    with left:
        run_id = st.selectbox(
            "Look into (or click a cell)",
            list(labels),
            format_func=labels.__getitem__,
            key=CELL,
            on_change=remember_cell,
        )
    with right:
        fate = st.segmented_control(
            "Share", list(figures.FATES), default="kept", key="board_fate", bind="query-params", required=True
        )
    run = next(run for run in runs if run.record.run_id == run_id)
    reader = board.readers.iloc[0] if len(board.readers) else None
    first, last = int(board.asked.positions[0]), int(board.asked.positions[-1])
    place = {} if reader is None else {"layer": str(int(reader["layer"])), "head": str(int(reader["head"]))}
    with more:
        link("autopsy", "Token by token in the autopsy", run=run_id, span=f"{first}-{last}", **place)
    heads = _heads(run, *page.stamp(run), tuple(board.asked.positions.tolist()), board.asked.step)
    at = None if reader is None else (int(reader["layer"]), int(reader["head"]))
    figure = figures.fact_by_head(heads, labels[run_id], fate, at, page_theme())
    file = page.file_name(run, "fact-by-head")
    show(figure, heads, figures.read_fact_by_head(heads, reader), "board-heads", file, page.source(run))


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
        _form(runs, next((sample.answer for sample in shipped_samples() if sample.text == record.prompt), "") or "", "")
        return
    with st.expander("Another answer or fact"):
        facts = known.asked.wanted.facts
        _form(runs, known.asked.wanted.answer, record.prompt[slice(*facts[0])] if facts else "")


def _form(runs: Sequence[Run], answer: str, fact: str) -> None:
    record = runs[0].record
    with st.form("answer-form", border=False):
        left, middle, right = st.columns([3, 4, 2], vertical_alignment="bottom")
        with left:
            typed = st.text_input("Expected answer", answer, key=f"answer-{record.comparison_id}")
        with middle:
            words = st.text_input(
                "Fact: words of the prompt (optional)",
                fact,
                key=f"fact-{record.comparison_id}",
                help="As they stand in the prompt. Without them, the place where the prompt holds the answer is taken.",
            )
        with right:
            sent = st.form_submit_button("Score the runs", icon=":material/rule:", width="stretch")
    if not sent:
        return
    try:
        save_answer(runs_root(), record.comparison_id, record.prompt, typed, [words] if words.strip() else [])
    except UserError as error:
        st.error(plain(str(error)))
        return
    st.rerun()
