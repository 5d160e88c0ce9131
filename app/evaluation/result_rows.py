"""The results in the folder of runs, and the page that shows them, a job's progress, or a form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import streamlit as st

from app.base.links import go
from app.base.widgets import one_of
from app.navigation.selection import runs_root
from app.queue.job_panel import POLL_SECONDS, show_job
from kvlab import jobs
from kvlab.bench.request import BenchJob
from kvlab.evaluation.request import EvalJob
from kvlab.results.sources import Sources


def measured_rows(kind: Literal["evaluations", "every_evaluation", "benchmarks"]) -> pd.DataFrame:
    """All rows of this kind, read again only when there is a new file; `every_evaluation` has unscored prompts too."""
    sources = Sources(runs_root())
    return _rows(sources, kind, sources.stamp_of_results)


@st.cache_resource(max_entries=6, show_spinner=False)
def _rows(_sources: Sources, kind: str, stamp: tuple[str, ...]) -> pd.DataFrame:
    return getattr(_sources, kind)


RESULTS = "Results"
REDRAWN_SECONDS = 5 * POLL_SECONDS


@dataclass(frozen=True)
class ResultsPage:
    """A page with the results of evaluations or benchmarks (`what`), and a form for a new one."""

    name: str
    what: str
    job: type[EvalJob | BenchJob]
    results: Callable[..., None]  # called with the name of a job's results, or without

    def shows_form(self, by_default: bool) -> bool:
        """The switch between results and form; whether the form is chosen."""
        start = self._another if by_default else RESULTS
        view = one_of("View", [RESULTS, self._another], start, key=f"{self.name}_view", label_visibility="collapsed")
        return view == self._another

    def follow(self, job_id: str) -> None:
        """The progress of a job and its results so far."""
        status = jobs.status(runs_root(), job_id)
        request = jobs.request_of(runs_root(), job_id)
        if not isinstance(request, self.job):
            go("new_run", job=job_id)
            return
        show_job(job_id)
        if st.button(f"Set up another {self.what}", icon=":material/add:"):
            go(self.name, **{f"{self.name}_view": self._another})
        if status.ended:
            self.results(request.name)
        else:
            self.redrawn(request.name)

    def redrawn(self, name: str | None = None) -> None:
        """The results, redrawn as they grow."""
        st.fragment(self.results, run_every=REDRAWN_SECONDS)(name)

    @property
    def _another(self) -> str:
        return f"New {self.what}"
