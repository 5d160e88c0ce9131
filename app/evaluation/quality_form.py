"""The form of an evaluation: tasks, files and uploads, methods, budgets, lengths, and what it will take."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from app.base import permission
from app.base.links import go
from app.base.private_switch import private_switch
from app.base.text import plain
from app.evaluation.fit_section import fit_section
from app.navigation.selection import runs_root
from app.new_run.method_section import hyper_parameter_section, method_section, placement_section
from app.queue.submit import queued
from kvlab.catalogue.models import what_to_name
from kvlab.catalogue.tasks import TaskEntry, TaskList, task_list
from kvlab.common.errors import UserError
from kvlab.common.formatting import format_duration
from kvlab.evaluate.request import EvalJob, FileChoice
from kvlab.forms import eval_form, prompt_files

FIRST_TASKS = ("needle", "key_value")
BUDGETS = "10%, 20%, 40%"
UPLOAD = (
    "Prompts with answers: JSON lines, JSON, Parquet or CSV with context (or prompt) and answer, or a benchmark's own "
    "file; up to 4 MB"
)
BY_FIELDS = "told by its fields"


def evaluation_form(rows: pd.DataFrame) -> None:
    """The whole form; `rows` are those of earlier evaluations, for the estimate."""
    try:
        with st.spinner("Reading the list of tasks"):
            listed = task_list()
        left, right = st.columns(2, gap="large")
        with left:
            tasks, files, uploaded = tasks_section(listed)
            options = prompts_section()
        with right:
            st.subheader("Model")
            model = st.text_input("Name", "mini", key="eval_model", bind="query-params", help=plain(what_to_name()))
            chosen, budgets = method_section(0, BUDGETS, "Evaluate")
            typed = hyper_parameter_section(chosen)
            fit_section(model, chosen)
            options |= placement_section()
            name = st.text_input(
                "Name of the results",
                key="eval_name",
                bind="query-params",
                placeholder="made of date and time",
                help="A folder under eval in the runs. An evaluation of the same name goes on there",
            )
            private = private_switch("eval_private")
    except UserError as error:
        st.error(plain(str(error)))
        return
    lengths, depths = options.pop("lengths"), options.pop("depths")
    try:
        job = eval_form.make_job(
            name=name or eval_form.new_name(), model=model, tasks=tasks, files=files, uploaded=uploaded, chosen=chosen,
            typed=typed, budgets=budgets, lengths=lengths, depths=depths, options=options, private=private,
        )  # fmt: skip
    except UserError as error:
        st.error(plain(str(error)))
        return
    estimate(job, listed, rows)
    if not can_be_made(job, listed):
        return
    start = {"type": "primary", "icon": ":material/play_arrow:", "width": "stretch", "key": "evaluate"}
    if permission.button("Evaluate", permission.why_not(), **start):
        submit(job)


def tasks_section(listed: TaskList) -> tuple[dict[str, dict[str, int]], str, FileChoice | None]:
    """The tasks with their difficulty, the files named, and the file uploaded."""
    st.subheader("Tasks")
    known = {task.name: task for task in listed.tasks}
    names = st.multiselect(
        "Made by kvlab",
        list(known),
        [name for name in FIRST_TASKS if name in known],
        key="tasks",
        bind="query-params",
        wrap=True,
    )
    for name in names:
        st.caption(plain(f"{name}: {known[name].summary}."))
    with_parameters = [known[name] for name in names if known[name].parameters]
    difficulty = _difficulty(with_parameters) if with_parameters else {}
    uploaded = _uploaded(listed)
    with st.expander("Files on this machine", key="eval_files_open", bind="query-params"):
        files = st.text_area(
            f"One a line as format=path; formats: {', '.join(listed.formats)}",
            key="eval_files",
            bind="query-params",
            placeholder="ruler=/data/niah_single_1/validation.jsonl",
        )
    return {name: difficulty.get(name, {}) for name in names}, files, uploaded


def _uploaded(listed: TaskList) -> FileChoice | None:
    """The file uploaded, and what it was found to be."""
    largest = prompt_files.LARGEST_UPLOAD // prompt_files.MEGABYTE
    given = {"type": list(prompt_files.TYPES), "max_upload_size": largest}
    file = st.file_uploader(UPLOAD, **permission.dead(permission.why_not(), key="eval_upload", **given))
    if file is None:
        return None
    form = st.selectbox("Format of the file", [BY_FIELDS, *listed.formats], key="eval_upload_form", bind="query-params")
    with st.spinner("Reading every line"):
        choice, checked = prompt_files.save_prompts(
            runs_root(), file.name, file.getvalue(), "" if form == BY_FIELDS else form
        )
    st.caption(plain(f"{file.name} is read as {checked.form}. {checked.words}."))
    return choice


def _difficulty(tasks: list[TaskEntry]) -> dict[str, dict[str, int]]:
    """What differs from each task's own difficulty."""
    changed: dict[str, dict[str, int]] = {}
    with st.expander("Difficulty", key="difficulty", bind="query-params"):
        columns = st.columns(3)
        fields = [(task.name, name, value) for task in tasks for name, value in task.parameters.items()]
        for number, (task, name, value) in enumerate(fields):
            with columns[number % 3]:
                label = f"{task}: {name}".replace("_", " ")
                given = int(st.number_input(label, 1, 10**6, value, key=f"{task}.{name}", bind="query-params"))
            if given != value:
                changed.setdefault(task, {})[name] = given
    return changed


def prompts_section() -> dict[str, Any]:
    """How many prompts, how long, and what is in sight when they are compressed."""
    st.subheader("Prompts")
    left, middle, right = st.columns(3)
    with left:
        samples = st.number_input(
            "Prompts a cell", 1, 10_000, 20, key="samples", bind="query-params", help="For each task, length and depth"
        )
    with middle:
        lengths = st.text_input(
            "Lengths, tokens",
            key="lengths",
            bind="query-params",
            placeholder="each task's own",
            help="Such as 512, 1024",
        )
    with right:
        depths = st.text_input(
            "Depths", key="depths", bind="query-params", placeholder="random", help="Such as 0, 0.5, 1: a needle map"
        )
    aware = st.toggle(
        "Question in sight when the prompt is compressed", True, key="question_aware", bind="query-params"
    )
    with st.expander("Seed and chunks", key="eval_more", bind="query-params"):
        seed = st.number_input("Seed", 0, 9_999_999, 0, key="eval_seed", bind="query-params")
        chunk = st.number_input(
            "Prefill chunk, tokens (0: the whole prompt at once)", 0, 2**20, 0, key="eval_chunk", bind="query-params"
        )
    return {
        "samples": int(samples), "lengths": lengths, "depths": depths, "question_aware": aware, "seed": int(seed),
        "prefill_chunk": int(chunk) or None,
    }  # fmt: skip


def estimate(job: EvalJob, listed: TaskList, rows: pd.DataFrame) -> None:
    """One line: how many measurements, and how long they will take."""
    found = eval_form.cost(job, listed, rows, runs_root())
    runs = len(job.request.all_choices)
    count = (
        f"{found.prompts:,} prompts under {runs} caches, the full one among them: {found.measurements:,} measurements"
    )
    if found.low is None or found.high is None:
        st.caption(plain(f"{count}. How long they take is not known, as nothing of this model has run here."))
        return
    least, most = format_duration(found.low, rough=True), format_duration(found.high, rough=True)
    st.caption(plain(f"{count}. {least} to {most} without loading ({found.basis})."))


def can_be_made(job: EvalJob, listed: TaskList) -> bool:
    """Whether every task can be made at the lengths asked for; says what cannot, and what methods leave undone."""
    try:
        with st.spinner("Making the first prompts"):
            problem, notes = eval_form.problem_of(job.request), eval_form.window_notes_of(job.request, listed)
    except UserError as error:  # the worker will tell
        st.caption(plain(str(error)))
        return True
    for note in notes:
        st.warning(plain(note))
    if problem:
        st.error(plain(problem))
    return not problem


def submit(job: EvalJob) -> None:
    """Queue it and go to its progress."""
    job_id = queued(lambda: job)
    if job_id is not None:
        go("quality", job=job_id)
