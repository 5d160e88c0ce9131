"""Quality: evaluations asked for, followed and looked into. `?job=` follows one, `?sample=` one of its prompts."""

from __future__ import annotations

import streamlit as st

from app.base.links import go
from app.base.text import plain
from app.evaluation.quality_form import evaluation_form
from app.evaluation.quality_results import results
from app.evaluation.result_rows import ResultsPage, measured_rows
from app.figures.figure import page_file
from app.navigation.selection import runs_root
from app.queue.job_panel import show_job
from app.queue.sweeps import any_at_work, planned
from app.run_views import page
from kvlab import jobs
from kvlab.common.errors import UserError
from kvlab.evaluate.request import EvalJob
from kvlab.trace.catalogue import list_runs

PAGE = ResultsPage("quality", "evaluation", EvalJob, results)


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
            PAGE.follow(job)
        else:
            look_or_ask()
    except UserError as error:
        st.error(plain(str(error)))
    page_file("Quality", "Scores of compressed caches beside the full cache.")


def look_or_ask() -> None:
    """What was evaluated, or the form of another evaluation."""
    rows = measured_rows("evaluations")
    if PAGE.asks(at_first=rows.empty and not planned()):
        evaluation_form(rows)
    elif any_at_work():
        PAGE.redrawn()
    else:
        results()


def follow_sample(job_id: str) -> None:
    """A prompt that is recorded; once it is there, its autopsy."""
    status = jobs.status(runs_root(), job_id)
    made = [run for run in list_runs(runs_root(), comparison_id=job_id) if run.method != "full"]
    if status.state == "complete" and made:
        go("autopsy", run=made[0].run_id)
    show_job(job_id)


main()
