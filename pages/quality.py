"""Quality: the progress and results of evaluations. `?job=` follows one, `?sample=` the recording of a prompt."""

from __future__ import annotations

import streamlit as st

from app.base.links import go
from app.base.text import plain
from app.evaluation.quality_results import results
from app.evaluation.result_rows import ResultsPage
from app.figures.figure import page_file
from app.navigation.selection import runs_root
from app.queue.job_panel import show_job
from app.run_views import page
from app.session.url_state import get_param
from kvlab import jobs
from kvlab.core.errors import UserError
from kvlab.evaluation.request import EvalJob
from kvlab.trace.catalogue import list_runs


def main() -> None:
    page.heading(
        "Quality",
        "Scores of compressed caches and the full cache on the same prompts: generated tasks, public benchmarks, and "
        "your own prompts.",
    )
    if (sample := get_param("sample")) is None:
        ResultsPage("quality", "Many prompts", EvalJob, results).show()
    else:
        # The progress of recording a prompt, then its autopsy.
        try:
            status = jobs.status(runs_root(), sample)
            compressed = [run for run in list_runs(runs_root(), comparison_id=sample) if run.method != "full"]
            if status.state == "complete" and compressed:
                go("autopsy", run=compressed[0].run_id)
            show_job(sample)
        except UserError as error:
            st.error(plain(str(error)))
    page_file("Quality", "Scores of compressed caches and the full cache.")


main()
