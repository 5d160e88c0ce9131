"""The form of an evaluation: tasks, files and uploads, methods, budgets, lengths, and the estimated time."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from pydantic import JsonValue
from streamlit.delta_generator import DeltaGenerator

from app.base.text import code, plain
from app.base.widgets import private_switch
from app.navigation.selection import runs_root
from app.new_run.method_section import fit_section, hyper_parameter_section, method_section, placement_section
from app.new_run.model_section import propose_model
from app.queue.job_panel import queue_and_open
from app.session.url_state import in_url
from kvlab.common.formatting import join_words, model_title
from kvlab.core import FULL, UserError
from kvlab.evaluation.request import EvalRequest, FileChoice
from kvlab.evaluation.results.rows import canonical_json
from kvlab.forms import compare_form, eval_form, prompt_files
from kvlab.jobs.size_check import prompt_lengths
from kvlab.models.info.chat_template import has_template
from kvlab.planning.choices import TaskList, model_field_help, task_list
from kvlab.requests.measurement import MINI
from kvlab.results.informative import task_notes
from kvlab.results.risk.sentences import fewest_prompts, prompts_warning
from kvlab.results.shipped_folder import shipped
from kvlab.results.sources import Sources
from kvlab.tasks.sample import StyleChoice, choose_style, with_style

BY_FIELDS = "detected"
STYLES: dict[StyleChoice, str] = {
    "auto": "chosen by the model: {}",
    "continuation": "continuation: text that ends with the answer's first words",
    "chat": "chat: the model's turn begins with the answer's first words",
    "question": "question: answered in the model's own words",
}


@dataclass(frozen=True)
class Purpose:
    """Purpose of an evaluation: the page that shows it, and the form's defaults."""

    page: str = "quality"
    tasks: tuple[str, ...] = ("needle", "key_value")
    methods: tuple[str, ...] = tuple(compare_form.SAMPLE_METHODS)
    budgets: str = "10%, 20%, 40%"
    samples: int = 20
    upload: str = (
        "Prompts with answers: JSON Lines, JSON, Parquet or CSV with the columns context (or prompt) and answer, or a "
        "benchmark's own file; up to 4 MiB"
    )
    form: str = BY_FIELDS  # the format of an uploaded file
    offers_kl: bool = False
    certifies: bool = False  # whether the number of prompts decides what can be certified


QUALITY = Purpose()
SAFE_BUDGET = Purpose(
    page="safe_budget",
    tasks=("needle",),
    methods=("snapkv", "keepkv"),
    budgets="90%, 70%, 50%, 40%, 30%, 20%, 15%, 10%, 5%",
    samples=200,
    upload="Your prompts: JSON Lines, JSON, Parquet or CSV with a column prompt (or context), and where you have them "
    "answer and group; up to 4 MiB",
    form="prompts",
    offers_kl=True,
    certifies=True,
)


def evaluation_form(rows: pd.DataFrame, purpose: Purpose = QUALITY) -> None:
    """The form; `rows` are those of earlier evaluations."""
    if purpose.certifies:
        st.caption(plain(fewest_prompts()))
    try:
        with st.spinner("Reading the list of tasks"):
            listed = task_list()
        left, right = st.columns(2, gap="large")
        with right:
            st.header("Model")
            propose_model("model")
            model = st.text_input("Name", "mini", **in_url("model"), help=plain(model_field_help()))
        with left:
            tasks, files, uploaded, notes = tasks_section(listed, purpose)
            options = prompts_section(model, purpose)
        with right:
            st.header("Methods")
            chosen, budgets = method_section(0, purpose.budgets, "Evaluate", usual=purpose.methods)
            typed = hyper_parameter_section(chosen)
            fit_section(model, chosen)
            options |= placement_section()
            name = st.text_input(
                "Name of the results",
                **in_url("eval_name"),
                placeholder="date and time",
                help="A folder under eval in the folder of runs. An evaluation of the same name is continued",
            )
            private = private_switch("eval_private")
    except UserError as error:
        st.error(plain(str(error)))
        return
    lengths = options.pop("lengths")
    depths = options.pop("depths")
    try:
        job = eval_form.make_job(
            name=name,
            model=model,
            tasks=tasks,
            files=files,
            uploaded=uploaded,
            chosen=chosen,
            typed=typed,
            budgets=budgets,
            lengths=lengths,
            depths=depths,
            options=options,
            private=private,
        )
    except UserError as error:
        st.error(plain(str(error)))
        return
    with notes:
        abilities_of(job.request, listed, rows)
    count = len(prompt_lengths(job.request, listed))
    caches = len(job.request.all_choices)
    measurements = f"{count * caches:,} measurements"
    st.caption(plain(f"{count:,} prompts under {caches} caches, including the full cache: {measurements}."))
    arms = {
        (one.method, canonical_json(one.hyper_parameters)) for one in job.request.choices if one.method != FULL.method
    }
    if purpose.certifies and arms and (few := prompts_warning(count, len(arms))):
        st.warning(plain(few), icon=":material/warning:")
    # Whether all tasks can be generated at the requested lengths, and notes of the methods.
    problem = ""
    method_notes: list[str] = []
    try:
        with st.spinner("Generating the first prompts"):
            problem, method_notes = eval_form.judge_request(job.request, listed)
    except UserError as error:  # the worker reports it
        st.caption(plain(str(error)))
    for note in method_notes:
        st.warning(plain(note))
    if problem:
        st.error(plain(problem))
        return
    if st.button("Evaluate", type="primary", icon=":material/play_arrow:", width="stretch", key="evaluate"):
        queue_and_open(purpose.page, lambda: job)


def tasks_section(
    listed: TaskList, purpose: Purpose
) -> tuple[dict[str, dict[str, JsonValue]], str, FileChoice | None, DeltaGenerator]:
    """The tasks with their difficulty, the files, the upload, and the place for what is known of the tasks."""
    st.header("Tasks")
    known = {task.name: task for task in listed.tasks}
    names = st.multiselect(
        "Generated by kvlab",
        list(known),
        [name for name in purpose.tasks if name in known],
        **in_url("tasks"),
        wrap=True,
    )
    for name in names:
        st.caption(plain(f"{name}: {known[name].summary}."))
    notes = st.container(key="abilities")
    # The parameters that differ from each task's defaults.
    difficulty: dict[str, dict[str, JsonValue]] = {}
    fields = [(known[name], field, value) for name in names for field, value in known[name].parameters.items()]
    columns: Sequence[DeltaGenerator] = ()
    if fields:
        with st.expander("Difficulty", **in_url("difficulty")):
            columns = st.columns(3)
    for number, (task, field, value) in enumerate(fields):
        parameter = f"{task.name}.{field}"
        label = f"{task.name}: {field}".replace("_", " ")
        with columns[number % 3]:
            typed: JsonValue
            if words := task.choices.get(field):
                typed = st.selectbox(label, words, words.index(str(value)), **in_url(parameter))
            else:
                typed = int(st.number_input(label, 1, 10**6, int(value), **in_url(parameter)))
        if typed != value:
            difficulty.setdefault(task.name, {})[field] = typed
    uploaded = _uploaded(listed, purpose)
    with st.expander("Files on this machine", **in_url("eval_files_open")):
        files = st.text_area(
            f"One per line as format=path; formats: {', '.join(listed.formats)}",
            **in_url("eval_files"),
            placeholder="ruler=/data/niah_single_1/validation.jsonl",
        )
    return {name: difficulty.get(name, {}) for name in names}, files, uploaded, notes


def _uploaded(listed: TaskList, purpose: Purpose) -> FileChoice | None:
    """The uploaded file in its detected or chosen format."""
    largest = prompt_files.LARGEST_UPLOAD // prompt_files.MEGABYTE
    file = st.file_uploader(purpose.upload, key="eval_upload", type=list(prompt_files.TYPES), max_upload_size=largest)
    if file is None:
        return None
    formats = [BY_FIELDS, *listed.formats]
    form = st.selectbox("Format of the file", formats, formats.index(purpose.form), **in_url("eval_upload_form"))
    with st.spinner("Reading every line"):
        choice, checked = prompt_files.save_prompts(
            runs_root(), file.name, file.getvalue(), "" if form == BY_FIELDS else form
        )
    st.caption(plain(f"{file.name} is read as {checked.form}. {checked.description}."))
    return choice


def abilities_of(request: EvalRequest, listed: TaskList, rows: pd.DataFrame) -> None:
    """Draw which tasks are not informative, as the model's full cache fails them, and which were not measured."""
    style = choose_style(request.style, has_template(request.model))
    known = {task.name: task for task in listed.tasks}
    asked = {}
    for choice in request.tasks:
        difficulty = {**known[choice.task].parameters, **choice.difficulty}
        asked[choice.task] = canonical_json(with_style(difficulty, style))
    notes: dict[str, str] = {}
    for measured in (shipped_rows(), rows) if request.model == MINI else (rows,):
        notes |= task_notes(measured, request.model, asked, request.lengths)
    title = model_title(request.model)
    for note in filter(None, notes.values()):
        st.warning(plain(f"Not informative on {title}: {note}"))
    if unknown := [task for task in asked if task not in notes]:
        where = "" if runs_root() == Path("runs").absolute() else f" --out {runs_root() / 'eval' / 'tasks'}"
        command = code(f"kvlab tasks --model {shlex.quote(request.model)}{where}", 300)
        words = plain(f"Whether {title} can do {join_words(unknown)} is not known here:")
        st.caption(f"{words} {command} measures its full cache.")


@st.cache_resource(show_spinner=False)
def shipped_rows() -> pd.DataFrame:
    """The rows of mini that ship with kvlab."""
    return Sources(runs_root(), shipped=shipped()).evaluations


def prompts_section(model: str, purpose: Purpose) -> dict[str, Any]:
    """Number and length of prompts, how tasks ask, and whether the question is visible during compression."""
    st.header("Prompts")
    left, middle, right = st.columns(3)
    samples = left.number_input(
        "Prompts per cell", 1, 10_000, purpose.samples, **in_url("samples"), help="For each task, length and depth"
    )
    lengths = middle.text_input(
        "Lengths, tokens", **in_url("lengths"), placeholder="the task's default", help="For example 512, 1024"
    )
    depths = right.text_input(
        "Depths", **in_url("depths"), placeholder="random", help="For example 0, 0.5, 1, which give a needle map"
    )
    style = st.selectbox(
        "How tasks ask",
        list(STYLES),
        format_func=lambda name: STYLES[name].format(choose_style("auto", has_template(model.strip()))),
        **in_url("style"),
        help="The first words of the answer are given in text to be continued, and begin a chat model's turn; a plain "
        "question gives none",
    )
    aware = st.toggle("Question visible when the prompt is compressed", True, **in_url("question_aware"))
    forced = purpose.offers_kl and st.toggle(
        "Measure KL in place of answers",
        **in_url("eval_forced"),
        help="The mean KL of the next token against the full cache, along the text that the full cache writes",
    )
    with st.expander("Seed and chunks", **in_url("eval_more")):
        seed = st.number_input("Seed", 0, 9_999_999, 0, **in_url("eval_seed"))
        chunk = st.number_input(
            "Prefill chunk, tokens (0: the whole prompt at once)", 0, 2**20, 0, **in_url("eval_chunk")
        )
    return {
        "samples": int(samples),
        "lengths": lengths,
        "depths": depths,
        "style": style,
        "question_aware": aware,
        "seed": int(seed),
        "prefill_chunk": int(chunk) or None,
        "forced": forced,
    }
