"""Quality: the form, progress and results of evaluations. `?job=` follows one, `?sample=` the recording of a prompt."""

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
from app.run_views import page
from app.session.url_state import get_param
from kvlab import jobs
from kvlab.core.errors import UserError
from kvlab.evaluation.request import EvalJob
from kvlab.trace.catalogue import list_runs

PAGE = ResultsPage("quality", "evaluation", EvalJob, results)


def main() -> None:
    page.heading(
        "Quality",
        "Scores of compressed caches and the full cache on the same prompts: generated tasks, public benchmarks, and "
        "your own prompts.",
    )
    sample = get_param("sample")
    job = get_param("job")
    try:
        if sample is not None:
            # The progress of recording a prompt, then its autopsy.
            status = jobs.status(runs_root(), sample)
            compressed = [run for run in list_runs(runs_root(), comparison_id=sample) if run.method != "full"]
            if status.state == "complete" and compressed:
                go("autopsy", run=compressed[0].run_id)
            show_job(sample)
        elif job is not None:
            PAGE.follow(job)
        else:
            results_or_form()
    except UserError as error:
        st.error(plain(str(error)))
    page_file("Quality", "Scores of compressed caches and the full cache.")


def results_or_form() -> None:
    """The results, or the form of a new evaluation."""
    rows = measured_rows("evaluations")
    if PAGE.shows_form(by_default=rows.empty):
        evaluation_form(rows)
    else:
        results()


main()
