"""The top of a comparison: quality against bytes, verdicts, the heads behind one, and the form for answers."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from app.base.links import link
from app.base.text import code, plain, shorten
from app.base.theme import theme as page_theme
from app.base.widgets import button_unless, one_of, why_not_change
from app.compare import restore
from app.compare.facts import FactKeys, fact_picker
from app.components import Spans
from app.figures.figure import frame_of, show, show_view
from app.navigation.page import CLEAR_REFERENCE
from app.session.open_runs import BY_STAMP, runs_root, shipped_answer
from app.session.url_state import drop_stale_option, get_param, in_url, set_page_param, set_page_param_from, url_value
from kvlab.common.formatting import ONE_PROMPT, format_duration
from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.trace.schema import RunRecord
from kvlab.trace.user_labels import Labels, load_labels, save_answer
from kvlab.views import board as figures
from kvlab.views import trade_off
from kvlab.views.base import FigureSource, byte_size, number, of_run
from kvlab.views.base.view import find_view
from kvlab.views.frames import board as analysis
from kvlab.views.frames.facts import fact_fates, fate_shares
from kvlab.views.frames.restore import estimate_seconds
from kvlab.views.frames.trade_off import HELD, READ, at_budget, compared_budgets, reads_less
from kvlab.views.lost_heads import failed_runs, short_words

ALL = "all"
MOST_RUNS = 12  # compressed runs that are shown together before a budget is chosen


def budget_slider(points: pd.DataFrame) -> str:
    """The budget that the page shows, "" for all of them; a slider in the URL where the comparison has several."""
    budgets = compared_budgets(points)
    if len(budgets) < 2:
        return ""
    options = [ALL, *budgets]
    if (wanted := get_param("budget")) is not None and wanted not in options:
        st.warning(f"This comparison has no budget {code(wanted)}: it has {', '.join(budgets)}.")
    drop_stale_option("budget", options)
    runs = int((points["method"] != "full").sum())
    words = "Drag it: the board, the charts and the texts below show the methods at this budget."
    # One chart cannot tell more runs apart, so the page opens at the smallest budget.
    first = ALL if runs <= MOST_RUNS else budgets[0]
    label = f"Budget ({', '.join(budgets)})"
    chosen = st.select_slider(label, options, first, help=words, width=420, **in_url("budget"))
    return "" if chosen == ALL else chosen


def bytes_axis() -> str:
    """Which bytes the figure compares; in the URL."""
    return one_of("Compare by", {HELD: "bytes held", READ: "bytes read"}, key="by")


def home_view(points: pd.DataFrame, budget: str, source: FigureSource) -> bool:
    """Draw quality against bytes; returns whether it was drawn."""
    known = points[(points["method"] != "full") & points["quality"].notna() & points["live_bytes"].notna()]
    if known.empty or not len(at_budget(known, budget)):
        return False
    axis = bytes_axis() if reads_less(points) else HELD
    figure = trade_off.quality_against_bytes(points, page_theme(), budget, axis)
    caption = trade_off.caption_quality_against_bytes(points, budget, axis)
    return show(figure, points, caption, "compare-trade", "quality-against-bytes", source)


CHART = "board-chart"
CELL = "board-cell"
MOST_ROWS = 24  # runs that have a row each; for more the board alone is drawn
FEW_LAYERS = 12  # whose numbers have room under a small wall
WALL_WIDTH = 400  # pixels of a small wall
ROOM_AROUND = 150  # pixels of its title, legend and axis
TOKENS_BEFORE = 12  # of a generated text that are shown before its first other token
TOKENS_SHOWN = 30
VERDICTS = {
    "right": ("right", "green"),
    "nearly": ("nearly", "orange"),
    "wrong": ("wrong", "red"),
    "unfinished": ("not finished", "gray"),
}
LONG_TEXT = 50_000  # characters of a prompt from which its words are sent only on request


@dataclass(frozen=True)
class Board:
    """The data of a board: `table` has one row per run, `frame` is that of the figure."""

    question: analysis.AnswerCheck
    table: pd.DataFrame
    frame: pd.DataFrame
    readers: pd.DataFrame


def board_of(runs: Sequence[Run]) -> Board | None:
    """The board of a comparison; None without an expected answer."""
    try:
        labels = load_labels(runs_root(), runs[0].record.comparison_id)
    except UserError as error:
        st.error(plain(str(error)))
        labels = Labels()
    wanted = analysis.expected_answer(runs, labels)
    return None if wanted is None else _board(runs, [run.record.status for run in runs], wanted)


@st.cache_data(max_entries=16, show_spinner="Scoring the runs", hash_funcs=BY_STAMP)
def _board(runs: Sequence[Run], statuses: list[str], wanted: analysis.ExpectedAnswer) -> Board:
    question = analysis.check_answer(runs, wanted)
    table = analysis.verdicts(runs, question)
    return Board(question, table, analysis.board(runs, question, table), analysis.readers(runs, question))


def board_section(runs: Sequence[Run], board: Board) -> bool:
    """Draw the grid, and the heads of the chosen cell; returns whether a chart was drawn."""
    if board.frame.empty:
        return False
    failed = []
    if board.question.reference.kind == "right":
        ids = set(failed_runs(board.table)["run_id"])
        failed = [run for run in runs if run.record.run_id in ids]
    results = restore.results_of((run.record.comparison_id, run.record.run_id) for run in failed)
    restored_by = {run_id: short_words(result) for run_id, result in results.items()}
    frame = board.frame.assign(restored=board.frame["run_id"].map(restored_by).fillna(""))
    view = find_view("board")
    shown = view.draw_frame(frame, runs, page_theme())
    slide = view.draw_frame(frame, runs, page_theme(), slide=True).figure
    drawn = show(
        shown.figure,
        frame,
        shown.caption,
        CHART,
        shown.file_name,
        shown.provenance,
        on_click=lambda cell: set_page_param("cell", cell[0], CELL),  # a mark of a cell chooses its run
        exported=slide,
    )
    known = [run for run in failed if run.record.run_id in results]
    if known:
        # One sentence per failed run with a result: which head lost what, and what restores the answer.
        lines = [f"- {plain(restore.cached_sentence(results[run.record.run_id], run))}" for run in known]
        st.markdown("\n".join(["**What restores the answer**", "", *lines]))
    missing = [run for run in failed if run.record.run_id not in results]
    seconds = [estimate_seconds(run, restore.MOST_RERUNS) for run in missing]
    duration = restore.EACH
    if None not in seconds:
        total = format_duration(max(sum(filter(None, seconds)), 1), rough=True)
        duration += f", at most {total} in all"
    restore.search_all([run.record.run_id for run in missing], duration, "search-all")
    cell_section(runs, board)
    return drawn


def first_screen(runs: Sequence[Run], board: Board) -> bool:
    """How many runs are right and which, one row a run, and the wall of the chosen one; whether a chart was drawn."""
    question = board.question
    compressed = board.table[board.table["method"] != "full"]
    right = analysis.correct_runs(board.table)
    verdict = question.reference
    if verdict.kind in ("nearly", "wrong"):
        st.warning(CLEAR_REFERENCE, icon=":material/warning:")
    wrote = {"right": "generates it", "unfinished": "has not generated its own text yet"}.get(
        verdict.kind, f"generates “{plain(verdict.wrote)}”"
    )
    shares = ["" if pd.isna(share) else f" ({number(100 * share, 2)} %)" for share in right["live_ratio"]]
    names = [f"**{plain(label)}**{share}" for label, share in zip(right["label"], shares, strict=True)]
    count = f"**{len(right) or 'None'} of {len(compressed)} right**{': ' if names else ''}{', '.join(names)}"
    expected = f"Expected answer: **{plain(shorten(question.expected.words))}**. The full cache {wrote}."
    st.markdown(f"{count}; {ONE_PROMPT}. {expected}")
    if question.problem:
        st.warning(plain(question.problem))
    if compressed.empty or len(compressed) > MOST_ROWS:
        return False
    rows, wall = st.columns([3, 2], gap="large")
    with rows:
        _run_rows(runs, board, compressed)
    with wall:
        # The cache of the chosen run after its last step, with a link to the whole wall.
        cells = board.frame.drop_duplicates("run_id").set_index("run_id")
        if cells.empty:
            return False
        run_id = chosen_cell(cells, cells[cells["kept"].notna()])
        run = next(run for run in runs if run.record.run_id == run_id)
        view = find_view("wall")
        try:
            view.check(run)
            drawn = view.draw_frame(frame_of("wall", run), run, page_theme(), of_run(run))
        except UserError as error:
            st.caption(plain(str(error)))
            return False
        axes = drawn.figure.layout
        if len(axes.xaxis.tickvals) > FEW_LAYERS:
            drawn.figure.update_xaxes(tickvals=axes.xaxis.tickvals[::5], ticktext=axes.xaxis.ticktext[::5])
        height = ROOM_AROUND + round(WALL_WIDTH * axes.yaxis.range[0] / axes.xaxis.range[1])
        drawn.figure.update_layout(height=height)
        is_drawn = show(drawn.figure, drawn.frame, drawn.caption, "answer-wall", drawn.file_name, drawn.provenance)
        link("wall", "Step by step", icon=":material/view_comfy:", run=run_id)
        return is_drawn


def _run_rows(runs: Sequence[Run], board: Board, compressed: pd.DataFrame) -> None:
    """A row a run, right ones first: verdict, text, bytes, KL, and why it is wrong or a button that finds out."""
    by_id = {run.record.run_id: run for run in runs}
    order = {kind: place for place, kind in enumerate(("right", "nearly", "wrong"))}
    table = compressed.assign(order=compressed["verdict"].map(order).fillna(len(order)))
    wrong = [] if board.question.reference.kind != "right" else set(failed_runs(board.table)["run_id"])
    results = restore.results_of((by_id[run_id].record.comparison_id, run_id) for run_id in wrong)
    for row in table.sort_values(["order", "mean_kl", "live_bytes"]).itertuples():
        run = by_id[row.run_id]
        with st.container(key=f"answer-row-{row.run_id}", gap=None):
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                label, colour = VERDICTS.get(row.verdict, VERDICTS["unfinished"])
                st.badge(label, color=colour)  # type: ignore[arg-type]  # one of the colours of a badge
                st.button(
                    plain(row.label),
                    type="tertiary",
                    key=f"answer-run-{row.run_id}",
                    help="Show its cache beside the answers",
                    on_click=set_page_param,
                    args=("cell", row.run_id, CELL),
                )
                size = "" if pd.isna(row.live_bytes) else byte_size(row.live_bytes)
                kl = "" if pd.isna(row.mean_kl) else f"KL {number(row.mean_kl, 2)}"
                st.caption(" · ".join(filter(None, (size, kl))))
                if row.run_id in results:
                    st.caption(plain(short_words(results[row.run_id])))
                elif row.run_id in wrong:
                    restore.button(run, f"why-{row.run_id}", f"Find out why ({restore.estimate(run, short=True)})")
            # The beginning of what the run generated; of a run that is not right, its first other token is marked.
            texts = analysis.phase_texts(run, "free")
            if not "".join(texts).strip():
                st.html("<em>only white space</em>" if texts else "<em>nothing generated yet</em>")
                continue
            # counted from 1
            at = None if pd.isna(row.first_divergence) or row.verdict == "right" else int(row.first_divergence) - 1
            escaped = [html.escape(text) for text in texts]
            if at is not None and at < len(escaped):
                words = escaped[at] if texts[at].strip() else "a space" if texts[at] else " ends here"
                escaped[at] = f"<mark>{words}</mark>"
            begin = max(0, (at or 0) - TOKENS_BEFORE)
            end = begin + TOKENS_SHOWN
            text = "".join(escaped[begin:end])
            before = "… " if begin else ""
            after = " …" if end < len(escaped) else ""
            st.html(f'<div style="overflow-wrap: anywhere">{before}{text}{after}</div>')


def cell_section(runs: Sequence[Run], board: Board) -> None:
    """The picker of a cell, links to restore its answer and to its autopsy, and the map of its heads."""
    cells = board.frame.drop_duplicates("run_id").set_index("run_id")
    recorded = cells[cells["kept"].notna()]
    run_id = chosen_cell(cells, recorded)
    lines = {line.Index: line for line in cells.itertuples()}
    run = next(run for run in runs if run.record.run_id == run_id)
    cell = cells.loc[run_id]
    reader = board.readers.iloc[0] if len(board.readers) else None
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="board-cell-row"):
        st.selectbox(
            "Look into (or click a cell)",
            list(cells.index),
            format_func=lambda name: f"{lines[name].label} · {figures.verdict_text(lines[name], 24)}",
            key=CELL,
            on_change=set_page_param_from,
            args=("cell", CELL),
            width=330,
        )
        if cell["verdict"] in ("nearly", "wrong") and board.question.reference.kind == "right":
            restore.button(run, f"restore-{run_id}")
        if run_id in recorded.index:
            fact = f"{int(board.question.positions[0])}-{int(board.question.positions[-1])}"
            place = {} if reader is None else {"layer": str(int(reader["layer"])), "head": str(int(reader["head"]))}
            link("autopsy", "Fate of a word", run=run_id, span=fact, **place)
    if run_id in recorded.index:
        # Layers and heads of one run: the fate of the fact's tokens, with the head that reads them outlined.
        fate = one_of("Share", list(figures.FATES), "kept", key="board_fate")
        heads = _heads(run, tuple(board.question.positions.tolist()), board.question.step)
        frame = figures.with_reader(heads, board.readers, board.question.moment)
        show_view("fact_by_head", run, "board-heads", frame=frame, fate=fate)
    elif len(board.question.positions):
        st.caption("The fate of the fact's tokens was not recorded: record the comparison at level full.")
    else:
        st.caption("No fact is marked: click its words below to see the fate of its tokens.")


def chosen_cell(cells: pd.DataFrame, recorded: pd.DataFrame) -> str:
    """The run in the URL, else the one to show first, if possible with a recorded fact."""
    chosen = url_value("cell")
    if chosen not in cells.index:
        chosen = analysis.most_interesting_run((recorded if len(recorded) else cells).reset_index())
    st.session_state[CELL] = chosen
    return str(chosen)


@st.cache_data(max_entries=32, hash_funcs=BY_STAMP, show_spinner=False)
def _heads(run: Run, positions: tuple[int, ...], step: int) -> pd.DataFrame:
    return fate_shares(fact_fates(run, positions, step), "layer", "head")


def answer_form(runs: Sequence[Run], board: Board | None) -> None:
    """A form to add or change the expected answer, which is stored with the runs."""
    record = runs[0].record
    if board is None:
        st.info(
            "There is no expected answer, so the rankings below compare how close the caches are, not which of them "
            "still answer correctly. Add the answer to score the runs from what they recorded.",
            icon=":material/help:",
        )
        title = "The answer and its facts"
        answer = shipped_answer(record.prompt)
        facts: Spans = ()
    else:
        wanted = board.question.expected
        title = "Another answer or fact"
        answer = wanted.answer
        facts = () if wanted.assumed else wanted.facts
    if len(record.prompt) <= LONG_TEXT:
        with st.expander(title, board is None):
            _form(record, answer, facts)
        return
    # All words of a long text are sent to the browser, so the form is drawn once opened.
    with st.expander(title, **in_url("answer_open"), on_change="rerun") as form:
        if form.open:
            _form(record, answer, facts)


def _form(record: RunRecord, answer: str, facts: Spans) -> None:
    typed = st.text_input("Expected answer", answer, key=f"answer-{record.comparison_id}", width=420)
    st.caption("Facts (optional): without them, the place where the prompt contains the answer is used.")
    marked = None
    try:
        name = record.comparison_id
        keys = FactKeys(f"fact-picker-{name}", f"facts-{name}", f"facts-marked-{name}")
        marked = fact_picker(record.prompt, keys, facts)
    except UserError as error:
        st.error(plain(str(error)))
    why = why_not_change([record.owner])
    key = f"score-{record.comparison_id}"
    if not button_unless("Score the runs", why, icon=":material/rule:", key=key) or marked is None:
        return
    try:
        save_answer(runs_root(), record.comparison_id, record.prompt, typed, marked)
    except UserError as error:
        st.error(plain(str(error)))
        return
    st.rerun()
