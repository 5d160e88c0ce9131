"""Buttons that queue the measurements a card of the atlas needs, or all missing ones."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import streamlit as st

from app.base.links import go
from app.base.text import plain
from app.navigation.selection import runs_root
from app.queue.job_panel import submit_job
from kvlab import jobs
from kvlab.bench.request import BenchJob
from kvlab.common.formatting import model_title
from kvlab.core.errors import UserError
from kvlab.evaluation.request import EvalJob
from kvlab.forms.measurement_job import FillSize, fill_jobs, job_of
from kvlab.jobs.access_check import under_own_name
from kvlab.jobs.work import Work
from kvlab.papers.registry import measurements_of
from kvlab.requests.measurement import Benchmark, Evaluation, ExhibitFill, Measurement, command_line

KEPT_JOBS = 200


def measure_button(measurement: Measurement, key: str, is_whole: bool = False) -> None:
    """Button that queues the measurement, or the reason if it needs a terminal.

    `is_whole`: the size and the command are visible, not only the button.
    """
    try:
        found = _jobs((measurement,), False, str(runs_root()))
    except UserError as error:
        st.caption(plain(str(error)))
        return
    if is_whole:
        # A benchmark has no model.
        model = "this machine" if isinstance(measurement, Benchmark) else measurement.model
        size = f"Recording {FillSize().prompts} texts" if isinstance(measurement, ExhibitFill) else "Measuring it"
        if isinstance(measurement, Evaluation):
            cells = max(1, len(measurement.lengths)) * max(1, len(measurement.depths))
            size = f"Measuring {measurement.samples * len(measurement.tasks) * cells:,} prompts"
        st.caption(plain(f"{size} on {model_title(model)}."))
        with st.popover("Command", key=f"command-{key}", type="tertiary"):
            st.code(command_line(measurement), language="bash", wrap_lines=True)
    if st.button("Queue it", icon=":material/add_task:", key=f"order-{key}"):
        submit(found)


def measure_all(measurements: Sequence[Measurement], model: str) -> None:
    """Button that queues everything that the model lacks, at a small size."""
    able = []
    for measurement in dict.fromkeys(measurements):
        with suppress(UserError):  # its card says why
            job_of(measurement)
            able.append(measurement)
    if not able:
        return
    found = _jobs(tuple(able), True, str(runs_root()))
    count = f"{len(found)} {'job' if len(found) == 1 else 'jobs'}"
    small = FillSize()
    size = f"{small.prompts} recorded texts, {small.samples} prompts of {small.lengths[0]} tokens per task"
    words = f"{count} can measure on {model_title(model)} what the cards lack ({size})."
    st.caption(plain(words))
    if st.button(f"Queue all {len(found)}", icon=":material/playlist_add:", key="order-all"):
        submit(found)


def submit(works: Sequence[Work]) -> None:
    """Queue all jobs and go to the progress of the first."""
    try:
        ids = [submit_job(under_own_name(runs_root(), work)) for work in works]
        jobs.ensure_worker(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return
    first = works[0]
    go("quality" if isinstance(first, EvalJob) else "speed" if isinstance(first, BenchJob) else "compare", job=ids[0])


@st.cache_resource(max_entries=KEPT_JOBS, show_spinner=False)
def _jobs(measurements: tuple[Measurement, ...], small: bool, root: str) -> list[Work]:
    first = measurements[0]
    if isinstance(first, ExhibitFill):
        measurements = tuple(measurements_of(Path(root), [first.exhibit], first.model))
        small = True
    return fill_jobs(measurements, FillSize()) if small else [job_of(measurement) for measurement in measurements]
