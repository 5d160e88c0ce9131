"""Many prompts: scores of evaluations and safe budgets. `?job=` follows one, `?sample=` the recording of a prompt."""

import streamlit as st

from app.base.links import go
from app.base.text import plain
from app.evaluation import quality_results, safe_budget_results
from app.evaluation.result_rows import ResultsPage
from app.figures.figure import page_file
from app.navigation import page
from app.navigation.selection import runs_root
from app.queue.job_panel import show_job
from app.session.url_state import get_param
from kvlab import jobs
from kvlab.core.errors import UserError
from kvlab.evaluation.request import EvalJob
from kvlab.trace.catalogue import list_runs


def quality_page() -> None:
    page.heading(
        "Scores",
        "Scores of compressed caches and the full cache on the same prompts: generated tasks, public benchmarks, and "
        "your own prompts.",
    )
    if (sample := get_param("sample")) is None:
        ResultsPage("quality", "Many prompts", EvalJob, quality_results.results).show()
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
    page_file("Scores", "Scores of compressed caches and the full cache.")


def safe_budget_page() -> None:
    page.heading(
        "Safe budget",
        "How small may the cache be so that your prompts keep their answers? The smallest budget of each method, with "
        "a statistical guarantee.",
    )
    ResultsPage("safe_budget", "A guarantee", EvalJob, safe_budget_results.results).show()
    page_file("Safe budget", "The smallest cache at which prompts keep their answers, with a guarantee.")
