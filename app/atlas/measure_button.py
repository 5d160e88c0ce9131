"""Buttons that queue the measurements a card of the atlas needs, or all missing ones, with their estimated duration."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.base.links import go
from app.base.text import plain
from app.evaluation.result_rows import measured_rows
from app.navigation.selection import runs_root
from app.queue.submit import submit_job
from kvlab import jobs
from kvlab.atlas.registry import measurements_of
from kvlab.bench.request import BenchJob
from kvlab.common.formatting import format_duration
from kvlab.common.model_title import model_title
from kvlab.core.errors import UserError
from kvlab.evaluate.request import EvalJob
from kvlab.forms.measurement_job import FillSize, estimate, fill_jobs, job_of
from kvlab.jobs.access_check import under_own_name
from kvlab.jobs.work import Work
from kvlab.requests.measurement import Benchmark, Evaluation, ExhibitFill, Measurement, command_line
from kvlab.results.shipped_folder import shipped
from kvlab.results.sources import Sources

KEPT_ESTIMATES = 200
Seconds = tuple[float, float] | None  # least and most
Estimated = tuple[Work, Seconds]
UNKNOWN = "an unknown time"


def measure_button(measurement: Measurement, key: str, is_whole: bool = False) -> None:
    """Button that queues the measurement, with its estimate; the reason instead if it needs a terminal.

    `is_whole`: the size, the estimate and the command are visible, not only the button.
    """
    try:
        found = _jobs((measurement,), False, str(runs_root()), len(measured_rows("evaluations")))
    except UserError as error:
        st.caption(plain(str(error)))
        return
    takes = f"Takes {range_text(total(found))}"
    if is_whole:
        st.caption(plain(f"{size_text(measurement)} {takes.lower()} on {model_title(model_of(measurement))}."))
        with st.popover("Command", key=f"command-{key}", type="tertiary"):
            st.code(command_line(measurement), language="bash", wrap_lines=True)
    if st.button("Queue it", icon=":material/add_task:", key=f"order-{key}", help=takes):
        submit([work for work, _ in found])


def measure_all(measurements: Sequence[Measurement], model: str) -> None:
    """Button that queues everything that the model lacks, at a small size, with the total of the known estimates."""
    able = tuple(measurement for measurement in dict.fromkeys(measurements) if _has_job(measurement))
    if not able:
        return
    found = _jobs(able, True, str(runs_root()), len(measured_rows("evaluations")))
    unknown = sum(seconds is None for _, seconds in found)
    rest = f", and {UNKNOWN} for {unknown} of them" if 0 < unknown < len(found) else ""
    count = f"{len(found)} {'job' if len(found) == 1 else 'jobs'}"
    small = FillSize()
    size = f"{small.prompts} recorded texts, {small.samples} prompts of {small.lengths[0]} tokens per task"
    words = f"{count} can measure on {model_title(model)} what the cards lack ({size})."
    st.caption(plain(f"{words} This takes {range_text(total(found))}{rest}."))
    if st.button(f"Queue all {len(found)}", icon=":material/playlist_add:", key="order-all"):
        submit([work for work, _ in found])


def size_text(measurement: Measurement) -> str:
    """How much it measures, as the subject of a sentence: `80 prompts` or `8 recorded texts`."""
    if isinstance(measurement, Evaluation):
        cells = max(1, len(measurement.lengths)) * max(1, len(measurement.depths))
        return f"Measuring {measurement.samples * len(measurement.tasks) * cells:,} prompts"
    return f"Recording {FillSize().prompts} texts" if isinstance(measurement, ExhibitFill) else "Measuring it"


def model_of(measurement: Measurement) -> str:
    """The model it measures; a benchmark has none."""
    return "this machine" if isinstance(measurement, Benchmark) else measurement.model


def total(found: Sequence[Estimated]) -> Seconds:
    """The sum of the known estimates."""
    known = [seconds for _, seconds in found if seconds is not None]
    return (sum(low for low, _ in known), sum(high for _, high in known)) if known else None


def range_text(seconds: Seconds) -> str:
    """`2 min 10 s to 5 min 40 s`."""
    return (
        UNKNOWN
        if seconds is None
        else f"{format_duration(seconds[0], rough=True)} to {format_duration(seconds[1], rough=True)}"
    )


def submit(works: Sequence[Work]) -> None:
    """Queue all jobs and go to the progress of the first."""
    try:
        ids = [submit_job(under_own_name(runs_root(), work)) for work in works]
        jobs.ensure_worker(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return
    first = works[0]
    go("quality" if isinstance(first, EvalJob) else "speed" if isinstance(first, BenchJob) else "new_run", job=ids[0])


def _has_job(measurement: Measurement) -> bool:
    """Whether a button can do it; if not, its card says why."""
    try:
        job_of(measurement)
    except UserError:
        return False
    return True


@st.cache_resource(max_entries=KEPT_ESTIMATES, show_spinner=False)
def _jobs(measurements: tuple[Measurement, ...], small: bool, root: str, seen: int) -> list[Estimated]:
    first = measurements[0]
    if isinstance(first, ExhibitFill):
        measurements, small = tuple(measurements_of(runs_root(), [first.exhibit], first.model)), True
    works = fill_jobs(measurements, FillSize()) if small else [job_of(measurement) for measurement in measurements]
    rows = _measured(model_of(first))
    return [(work, estimate(work, rows, runs_root())) for work in works]


def _measured(model: str) -> pd.DataFrame:
    """The reader's own evaluations, else the model's shipped ones: how long a token took under each method."""
    own, theirs = measured_rows("evaluations"), shipped(model)
    return own if len(own) or theirs is None else Sources(runs_root(), shipped=theirs).evaluations
