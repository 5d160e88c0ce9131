"""The results of an evaluation: ranks, scores against budgets and bytes, needle maps, and the prompts behind a cell."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
import streamlit as st

from app.base import permission
from app.base.links import go
from app.base.segmented import one_of
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.evaluation.result_rows import measured_rows
from app.figures.export_menu import Offer, titled
from app.figures.figure import show, slug
from app.navigation.selection import runs_root
from app.queue.submit import submitted
from app.queue.sweeps import planned, sweep_progress
from app.session.url_numbers import forget_unknown
from kvlab import jobs
from kvlab.atlas import paper_table_text
from kvlab.atlas.scores import origin_of
from kvlab.common.errors import UserError
from kvlab.figures import needle_map, scores
from kvlab.figures import quality as figures
from kvlab.figures.base.words import plural
from kvlab.forms import eval_form
from kvlab.report.views import table_of
from kvlab.requests.compare import FULL
from kvlab.results import quality_tables
from kvlab.trace.user_labels import load_labels

RANKS = "quality-ranks"
COLUMNS = {
    "index": "prompt", "length": "length", "depth": "depth", "score": "score", "full": "full cache's score",
    "answer": "answer", "prediction": "what it wrote", "prediction_full": "what the full cache wrote",
}  # fmt: skip
MOST_PROMPTS = 500
TABLES = {".md": "Markdown", ".tex": "LaTeX"}


@dataclass(frozen=True)
class Tables:
    """What the figures show; drawn from rows of one model."""

    scores: pd.DataFrame
    means: pd.DataFrame
    ranks: pd.DataFrame
    bytes: pd.DataFrame
    needles: pd.DataFrame
    needle_means: pd.DataFrame


@st.cache_resource(max_entries=16, show_spinner="Comparing")
def _tables(_rows: pd.DataFrame, asked: str, key: tuple) -> Tables:
    table = quality_tables.scores(_rows)
    cells, means = quality_tables.needles(_rows, asked)
    return Tables(
        table,
        quality_tables.means(_rows, table, ["arm"]),
        quality_tables.ranks(_rows, asked),
        quality_tables.by_bytes(_rows),
        cells,
        means,
    )


def results(name: str | None = None) -> None:
    """The pickers and all figures of one evaluation; `name` is the one a job writes to."""
    rows = chosen_rows(measured_rows("evaluations"), name)
    if rows.empty:
        return
    compressed = rows[rows["method"] != FULL.method]
    if compressed.empty:
        st.info("Only the full cache was evaluated so far: the first compressed prompt makes the figures.")
        return
    asked = pick_budget(rows)
    tables = _tables(
        rows, asked, (name, asked, len(rows), *rows["key"].iloc[[0, -1]], str(rows["question_aware"].iloc[0]))
    )
    origin = origin_of(rows)
    ranks(tables, asked, origin)
    left, right = st.columns(2, gap="large")
    with left:
        by_budget(tables, origin)
    with right:
        by_bytes(tables, origin)
    needles(tables, origin)
    prompts(rows, tables, asked)
    st.caption(f":material/folder_open: {plain(origin)}")
    table_files(rows)


def table_files(rows: pd.DataFrame) -> None:
    """Buttons for the scores as a table of a paper, made when one is pressed."""
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
    """The rows of the evaluation, model and way of asking that are picked."""
    names = rows["name"].drop_duplicates().tolist()[::-1] if len(rows) else []
    names += [sweep for sweep in planned() if sweep not in names]
    if not names and name is None:
        st.info("Nothing was evaluated in this folder of runs yet: start one above, or with `kvlab eval`.")
        return rows
    if name is not None:
        if name not in names:
            st.info("No row is written yet: the model is loaded and the first prompts are made.")
            return rows.iloc[:0]
        st.session_state["evaluation"] = name
    forget_unknown("evaluation", names)
    left, middle, right = st.columns(3)
    with left:
        found = st.selectbox("Evaluation", names, key="evaluation", bind="query-params")
    sweep_progress(found)
    if rows.empty or found not in set(rows["name"]):
        st.info("No row of this evaluation is there yet, or all of them are an earlier one's too.")
        return rows.iloc[:0]
    rows = rows[rows["name"] == found]
    rows = _pick(rows, "model", "Model", middle)
    aware = rows["question_aware"].map({True: "in sight", False: "not in sight"})
    return _pick(rows.assign(question=aware), "question", "Question", right).drop(columns="question")


def _pick(rows: pd.DataFrame, column: str, label: str, place: st.delta_generator.DeltaGenerator) -> pd.DataFrame:
    values = rows[column].value_counts().index.tolist()
    if len(values) < 2:
        return rows
    key = f"eval_{column}_shown"
    forget_unknown(key, values)
    with place:
        picked = st.selectbox(label, values, key=key, bind="query-params")
    return rows[rows[column] == picked]


def pick_budget(rows: pd.DataFrame) -> str:
    """The budget at which methods are ranked."""
    return one_of("Budget", quality_tables.budgets(rows), key="ranked_at")


def ranks(tables: Tables, asked: str, origin: str) -> None:
    """Method by task; a click on a cell opens its prompts below."""
    figure = figures.rank_table(tables.ranks, page_theme(), f"Ranks at {asked}")
    reading = figures.read_rank_table(tables.ranks)
    show(figure, tables.ranks, reading, RANKS, f"ranks-{asked}", origin, on_click=choose_clicked)


def choose_clicked() -> None:
    """A click on a cell: its task and method are those whose prompts are shown."""
    points = st.session_state[RANKS].selection.points
    if points and (told := points[0].get("customdata")) and len(told) == 2:
        task, arm = told
        st.session_state["cell_arm"] = arm
        if task != quality_tables.ALL_TASKS:
            st.session_state["cell_task"] = task


def by_budget(tables: Tables, origin: str) -> None:
    """Scores of each task over the share of tokens really kept."""
    figure = scores.score_against_budget(tables.scores, page_theme())
    reading = scores.read_score_against_budget(tables.means)
    show(figure, tables.scores, reading, "quality-budget", "score-by-budget", origin)


def by_bytes(tables: Tables, origin: str) -> None:
    """Scores over the bytes of a prompt, with the frontier; nothing where only losses were measured."""
    if tables.bytes.empty:
        st.caption("No task of these has a score where more is better, so there is no frontier.")
        return
    figure = figures.score_against_bytes(tables.bytes, page_theme())
    reading = figures.read_score_against_bytes(tables.bytes)
    show(figure, tables.bytes, reading, "quality-bytes", "score-by-bytes", origin)


def needles(tables: Tables, origin: str) -> None:
    """Needle maps where prompts were made at several depths."""
    if tables.needles.empty:
        st.caption("A needle map needs prompts at several depths: give depths such as 0, 0.25, 0.5, 0.75, 1.")
        return
    figure = needle_map.needle_map(tables.needles, page_theme())
    reading = needle_map.read_needle_map(tables.needles, tables.needle_means)
    show(figure, tables.needles, reading, "quality-needles", "needle-map", origin)


def prompts(rows: pd.DataFrame, tables: Tables, asked: str) -> None:
    """The prompts of a cell, the worst first; the one that is chosen can be recorded and looked into."""
    st.subheader("The prompts behind a cell")
    left, right = st.columns(2)
    tasks = [task for task in tables.ranks["task"].drop_duplicates() if task != quality_tables.ALL_TASKS]
    forget_unknown("cell_task", tasks)
    with left:
        task = st.selectbox("Task", tasks, key="cell_task", bind="query-params")
    arms = tables.ranks.loc[tables.ranks["task"] == task, "arm"].tolist()
    forget_unknown("cell_arm", arms)
    with right:
        arm = st.selectbox("Method", arms, key="cell_arm", bind="query-params")
    every = quality_tables.prompts_behind(rows, task, arm, asked)
    found = every.head(MOST_PROMPTS)
    if found.empty:
        st.caption("This method was not asked this task at this budget.")
        return
    shown = found.assign(index=found["index"] + 1)[list(COLUMNS)].rename(columns=COLUMNS)
    shown = shown.dropna(axis="columns", how="all")
    told = f"evaluation · task {task} · {plural(len(found), 'prompt')}"
    titled(Offer(f"{arm}: prompts of {task}, the worst first", partial(table_of, shown), source=told), "cell-table")
    picked = st.dataframe(
        shown, hide_index=True, height=38 + 35 * min(len(shown), 7), key="cell_prompts", on_select="rerun",
        selection_mode="single-row", alt="One row a prompt, the worst first",
    )  # fmt: skip
    places = [place for place in picked.selection.rows if place < len(found)]
    row = found.iloc[places[0] if places else 0]
    which = "the chosen prompt" if places else "the worst prompt"
    st.caption(
        plain(f"{len(found):,} of {len(every):,} prompts, those first that lose most against the full cache. A "
              "recorded comparison reads the prompt with its question in sight.")
    )  # fmt: skip
    label = f"Record {which} and open its autopsy"
    if permission.button(label, permission.why_not(), icon=":material/search_insights:", key="record_sample"):
        record(row)


def record(row: pd.Series) -> None:
    """Queue the prompt as a recorded comparison; the page follows it to its autopsy."""
    root: Path = runs_root()
    try:
        private = load_labels(root, str(row["name"]), "evaluation").private
        job = eval_form.sample_job(row.to_dict(), eval_form.known_files(root), private)
        job_id = submitted(job)
        jobs.ensure_worker(root)
    except UserError as error:
        st.error(plain(str(error)))
        return
    go("quality", sample=job_id)
