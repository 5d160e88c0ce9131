"""The results in the folder of runs, and the page that shows them or a job's progress."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import streamlit as st

from app.base.links import go, link
from app.base.text import plain
from app.navigation.selection import runs_root
from app.queue.job_panel import POLL_SECONDS, show_job
from app.session.url_state import get_param, params
from kvlab import jobs
from kvlab.bench.request import BenchJob
from kvlab.core.errors import UserError
from kvlab.evaluation.request import EvalJob
from kvlab.results.sources import Sources


def measured_rows(kind: Literal["evaluations", "every_evaluation", "benchmarks"]) -> pd.DataFrame:
    """All rows of this kind, read again only when there is a new file; `every_evaluation` has unscored prompts too."""
    sources = Sources(runs_root())
    return _rows(sources, kind, sources.stamp_of_results)


@st.cache_resource(max_entries=6, show_spinner=False)
def _rows(_sources: Sources, kind: str, stamp: tuple[str, ...]) -> pd.DataFrame:
    return getattr(_sources, kind)


REDRAWN_SECONDS = 5 * POLL_SECONDS


@dataclass(frozen=True)
class ResultsPage:
    """A page with the results of evaluations or benchmarks, whose form is the question `ask` of the page New."""

    name: str
    ask: str
    job: type[EvalJob | BenchJob]
    results: Callable[..., None]  # called with the name of a job's results, or without

    def show(self) -> None:
        """The progress of the job in the URL, else all results; an error is one sentence."""
        query = params()
        if query.pop(f"{self.name}_view", "").startswith("New"):  # links of before: the form stood here
            go("new_run", **query, ask=self.ask)
        job_id = get_param("job")
        try:
            if job_id is None:
                link("new_run", "Measure more", icon=":material/add:", ask=self.ask)
                self.results()
                return
            # The progress of a job and its results so far.
            status = jobs.status(runs_root(), job_id)
            request = jobs.request_of(runs_root(), job_id)
            if not isinstance(request, self.job):
                go("compare", job=job_id)
                return
            show_job(job_id)
            link("new_run", "Measure more", icon=":material/add:", ask=self.ask)
            if status.ended:
                self.results(request.name)
            else:
                st.fragment(self.results, run_every=REDRAWN_SECONDS)(request.name)
        except UserError as error:
            st.error(plain(str(error)))
