"""Quality: evaluations asked for, followed and looked into. `?job=` follows one, `?sample=` one of its prompts."""

from __future__ import annotations

import streamlit as st

from app.parts import page
from app.parts.figure import page_file
from app.parts.job_panel import POLL_SECONDS, show_job
from app.parts.links import go
from app.parts.quality_form import evaluation_form
from app.parts.quality_results import evaluation_rows, results
from app.parts.sweeps import any_at_work, planned
from app.parts.text import plain
from app.state import runs_root
from kvlab import jobs
from kvlab.errors import UserError
from kvlab.evaluate.request import EvalJob
from kvlab.trace.catalogue import list_runs

RESULTS, NEW = "Results", "New evaluation"
REDRAWN_SECONDS = 5 * POLL_SECONDS


def main() -> None:
    page.heading(
        "Quality",
        "Scores of compressed caches beside the full cache on the same prompts: tasks made here, the field's files, "
        "and prompts of your own.",
    )
    sample, job = st.query_params.get("sample"), st.query_params.get("job")
    try:
        if sample is not None:
            follow_sample(sample)
        elif job is not None:
            follow(job)
        else:
            look_or_ask()
    except UserError as error:
        st.error(plain(str(error)))
    page_file("Quality", "Scores of compressed caches beside the full cache.")


def look_or_ask() -> None:
    """What was evaluated, or the form of another evaluation."""
    rows = evaluation_rows()
    first = NEW if rows.empty and not planned() else RESULTS
    view = st.segmented_control(
        "View", [RESULTS, NEW], default=first, key="quality_view", bind="query-params", required=True,
        label_visibility="collapsed",
    )  # fmt: skip
    if view == NEW:
        evaluation_form(rows)
    elif any_at_work():
        st.fragment(results, run_every=REDRAWN_SECONDS)()
    else:
        results()


def follow(job_id: str) -> None:
    """An evaluation as it goes, with what it has by now; its results once it ended."""
    status, request = jobs.status(runs_root(), job_id), jobs.request_of(runs_root(), job_id)
    if not isinstance(request, EvalJob):
        go("new_run", job=job_id)
        return
    show_job(job_id)
    if st.button("Set up another evaluation", icon=":material/add:"):
        go("quality", quality_view=NEW)
    if status.ended:
        results(request.name)
    else:
        st.fragment(results, run_every=REDRAWN_SECONDS)(request.name)


def follow_sample(job_id: str) -> None:
    """A prompt that is recorded; once it is there, its autopsy."""
    status = jobs.status(runs_root(), job_id)
    made = [run for run in list_runs(runs_root(), comparison_id=job_id) if run.method != "full"]
    if status.state == "complete" and made:
        go("autopsy", run=made[0].run_id)
    show_job(job_id)


main()
