"""Who killed the answer, on pages: a button that asks the queue, and the panel of a search that runs."""

from __future__ import annotations

import streamlit as st

from app.base import permission
from app.base.links import go
from app.base.text import duration, plain
from app.navigation.selection import runs_root
from app.queue.submit import going_on, queued
from kvlab import jobs
from kvlab.analysis.comparison.restore import estimate_seconds
from kvlab.common.errors import UserError
from kvlab.requests.compare import RescueRequest
from kvlab.trace.reader import Run
from kvlab.trace.restore_results import result_path

MOST_RERUNS = 40
POLL_SECONDS = 1.0


def ask(run: Run, most_reruns: int = MOST_RERUNS) -> str | None:
    """Put the search for what killed this run's answer into the queue; its job, or None with a sentence."""
    record = run.record
    title = f"Who killed it? {record.label}"
    asked = {"run_id": record.run_id, "most_reruns": most_reruns, "title": title, "private": record.private}
    return queued(lambda: RescueRequest(**asked))


def button(run: Run, key: str, label: str = "Who killed it?") -> None:
    """One click: the search begins, and its page opens; at once where somebody has looked already."""
    record = run.record
    known = result_path(runs_root(), record.comparison_id, record.run_id).exists()
    if not permission.button(label, "" if known else permission.why_not(), icon=":material/mystery:", key=key):
        return
    if known:
        go("killed", run=record.run_id)
    if job := ask(run):
        go("killed", run=record.run_id, search=job)


def estimate(run: Run, most_reruns: int) -> str:
    """How long it may take, before it begins."""
    seconds = estimate_seconds(run, most_reruns)
    if seconds is None:
        return f"at most {most_reruns} reruns"
    return f"at most {most_reruns} reruns, about {duration(max(seconds, 1))} and the time to load the model"


def follow(job_id: str) -> None:
    """The search as it goes, with a button to stop it; once it ended, why it failed if it did."""
    try:
        status = jobs.status(runs_root(), job_id)
    except UserError as error:
        st.error(plain(str(error)))
        return
    if not status.ended:
        st.fragment(_live, run_every=POLL_SECONDS)(job_id)
    elif status.state == "failed":
        st.warning(plain(status.message))


def _live(job_id: str) -> None:
    status = going_on(job_id)
    if status is None:
        return
    told = status.progress
    ahead = (status.position or 1) - 1
    stage = f"Waiting: {ahead} before it" if status.state == "queued" else "Loading the model"
    stage = told.stage if told else stage
    left, right = st.columns([6, 1], vertical_alignment="bottom")
    with left:
        st.progress(told.done / told.total if told and told.total else 0.0, plain(stage))
    with right:
        why, kept = permission.why_not_change([status.owner]), "What was found by then is kept."
        if permission.button("Stop", why, key="stop-search", disabled=status.cancelling, help=kept):
            try:
                jobs.cancel(runs_root(), job_id)
            except UserError as error:
                st.error(plain(str(error)))
                return
            st.rerun(scope="fragment")
