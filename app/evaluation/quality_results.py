"""The results of an evaluation: ranks, scores by budget and bytes, needle maps, and the prompts behind a cell."""

from contextlib import suppress
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from app.base.links import link
from app.base.text import plain, slug
from app.base.widgets import one_of
from app.compare.board import bytes_axis
from app.evaluation.result_rows import measured_rows
from app.figures.export_menu import Offer, show_title
from app.figures.figure import frame_of, in_pairs, show_view
from app.navigation.selection import runs_root
from app.queue.job_panel import queue_and_open
from app.session.url_state import drop_stale_option, in_url
from kvlab.common.formatting import model_title
from kvlab.core import FULL, UserError
from kvlab.evaluation.request import SampleJob
from kvlab.forms import eval_form
from kvlab.papers import paper_tables as paper_table_text
from kvlab.papers.evaluations import origin_of
from kvlab.report.views import table_of
from kvlab.results import quality_tables
from kvlab.trace.user_labels import load_labels
from kvlab.views.base.words import plural
from kvlab.views.frames.trade_off import HELD

RANKS = "quality-ranks"
COLUMNS = {
    "index": "prompt", "length": "length", "depth": "depth", "score": "score", "full": "full cache's score",
    "answer": "answer", "prediction": "generated text", "prediction_full": "full cache's text",
}  # fmt: skip
MOST_PROMPTS = 500
NO_TEXTS = "The texts of these answers were not shipped with the rows: record a prompt to read its text."
TABLES = {".md": "Markdown", ".tex": "LaTeX"}


def results(name: str | None = None) -> None:
    """The pickers and all figures of one evaluation; `name` is that of a job."""
    rows = chosen_rows(measured_rows("evaluations"), name)
    if rows.empty:
        return
    compressed = rows[rows["method"] != FULL.method]
    if compressed.empty:
        st.info("Only the full cache is evaluated so far: figures appear with the first compressed prompt.")
        return
    st.caption(plain(quality_tables.what_was_evaluated(rows)))
    budget = one_of("Budget", quality_tables.budgets(rows), key="ranked_at")  # at which methods are ranked
    reads = rows["hyper_parameters"].str.contains('"read"', regex=False).any()
    axis = bytes_axis() if reads else HELD
    origin = origin_of(rows)
    with st.spinner("Comparing"):
        left_out = frame_of("score_by_budget", rows).attrs["left_out"]
    if left_out:
        st.info(left_out)
    # Methods by task; a click on a cell shows its prompts below.
    show_view("ranks", rows, RANKS, on_click=choose_clicked, source=origin, budget=budget)
    # Scores of each task by the share of tokens actually kept; by the bytes of a prompt, with the frontier.
    in_pairs(
        partial(show_view, "score_by_budget", rows, "quality-budget", source=origin),
        partial(show_view, "score_by_bytes", rows, "quality-bytes", source=origin, axis=axis),
    )
    # Views that few evaluations have rows for: several depths, counted evictions, two settings that vary, and methods
    # that keep or read chunks of tokens.
    places: dict[str, dict[str, Any]] = {"needles": {"budget": budget}, "survival": {}, "setting_grid": {}, "phase": {}}
    for name, place in places.items():
        with suppress(UserError):
            frame_of(name, rows, **place)
            show_view(name, rows, f"quality-{name}", source=origin, **place)
    if rows["task"].str.startswith("ruler").any():
        show_view("public_board", rows, "quality-board", source=origin)
    prompts(rows, budget)
    st.caption(f":material/folder_open: {plain(str(origin))}")
    # Buttons that export the scores as a table for a paper.
    with st.container(horizontal=True, gap="small", key="quality-tables"):
        for ending, words in TABLES.items():
            st.download_button(
                f"Scores as {words}",
                partial(paper_table_text.render_tables, ending, rows),
                f"scores-{slug(str(rows['name'].iloc[0]))}{ending}",
                key=f"scores{ending}",
                on_click="ignore",
                icon=":material/table:",
                type="tertiary",
            )


def chosen_rows(rows: pd.DataFrame, name: str | None) -> pd.DataFrame:
    """The rows of the chosen evaluation, model and position of the question."""
    names = rows["name"].drop_duplicates().tolist()[::-1] if len(rows) else []
    if not names and name is None:
        st.info("There are no evaluations here yet: start one on the page **New**, or with `kvlab eval`.")
        return rows
    if name is not None:
        if name not in names and name in measured_rows("every_evaluation").get("name", pd.Series(dtype=str)).unique():
            st.info("The prompts of this evaluation have no answers, so they have no scores.")
            link(
                "safe_budget", "Compare their texts with the full cache's", ":material/verified_user:", evaluation=name
            )
            return rows.iloc[:0]
        if name not in names:
            st.info("No results yet: the model is being loaded and the first prompts are being generated.")
            return rows.iloc[:0]
        st.session_state["evaluation"] = name
    drop_stale_option("evaluation", names)
    left, middle, right = st.columns(3)
    chosen = left.selectbox("Evaluation", names, **in_url("evaluation"))
    rows = rows[rows["name"] == chosen]
    rows = _pick(rows, "model", "Model", middle)
    aware = rows["question_aware"].map(quality_tables.WHERE)
    return _pick(rows.assign(question=aware), "question", "Question", right).drop(columns="question")


def _pick(rows: pd.DataFrame, column: str, label: str, place: st.delta_generator.DeltaGenerator) -> pd.DataFrame:
    values = rows[column].value_counts().index.tolist()
    if len(values) < 2:
        return rows
    key = f"eval_{column}_shown"
    drop_stale_option(key, values)
    words = model_title if column == "model" else str
    picked = place.selectbox(label, values, format_func=words, **in_url(key))
    return rows[rows[column] == picked]


def choose_clicked(cell: list[str]) -> None:
    """A click on a cell chooses its task and method."""
    if len(cell) == 2:
        task, arm = cell
        st.session_state["cell_arm"] = arm
        if task != quality_tables.ALL_TASKS:
            st.session_state["cell_task"] = task


def prompts(rows: pd.DataFrame, budget: str) -> None:
    """The prompts of a cell, the worst first, and a button to record one."""
    st.header("The prompts behind a cell")
    left, right = st.columns(2)
    ranks = frame_of("ranks", rows, budget=budget)
    tasks = [task for task in ranks["task"].drop_duplicates() if task != quality_tables.ALL_TASKS]
    drop_stale_option("cell_task", tasks)
    task = left.selectbox("Task", tasks, **in_url("cell_task"))
    arms = ranks.loc[ranks["task"] == task, "arm"].tolist()
    drop_stale_option("cell_arm", arms)
    arm = right.selectbox("Method", arms, **in_url("cell_arm"))
    every = quality_tables.prompts_behind(rows, task, arm, budget)
    found = every.head(MOST_PROMPTS)
    if found.empty:
        st.caption("This method was not evaluated on this task at this budget.")
        return
    shown = found.assign(index=found["index"] + 1, answer=quality_tables.answer_texts(found))
    shown = shown[list(COLUMNS)].rename(columns=COLUMNS)
    shown = shown.dropna(axis="columns", how="all")
    source = f"evaluation · task {task} · {plural(len(found), 'prompt')}"
    show_title(
        Offer(f"{arm}: prompts of {task}, the worst first", partial(table_of, shown), source=source), "cell-table"
    )
    picked = st.dataframe(
        shown,
        hide_index=True,
        height=38 + 35 * min(len(shown), 7),
        key="cell_prompts",
        on_select="rerun",
        selection_mode="single-row",
        alt="One row per prompt, the worst first",
    )
    places = [place for place in picked.selection.rows if place < len(found)]
    row = found.iloc[places[0] if places else 0]
    which = "the chosen prompt" if places else "the worst prompt"
    if found["prediction"].isna().all():
        st.caption(NO_TEXTS)
    st.caption(
        plain(
            f"{len(found):,} of {len(every):,} prompts, those with the largest loss against the full cache "
            "first. A recorded comparison reads the prompt with its question visible."
        )
    )
    label = f"Record {which} and open its autopsy"
    if st.button(label, icon=":material/search_insights:", key="record_sample"):
        queue_and_open("quality", partial(sample_of, row), "sample")


def sample_of(row: pd.Series) -> SampleJob:
    """The job that records a row's prompt. Raises UserError as `eval_form.sample_job`."""
    private = load_labels(runs_root(), str(row["name"]), "evaluation").private
    return eval_form.sample_job(row.to_dict(), eval_form.known_files(runs_root()), private)
