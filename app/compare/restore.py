"""Searches that restore a wrong run's answer: a button that queues one, and the progress of one."""

from __future__ import annotations

import streamlit as st

from app.base import permission
from app.base.links import go
from app.base.text import plain
from app.base.widgets import attempt
from app.navigation.selection import runs_root
from app.queue.submit import live_status, queued
from kvlab import jobs
from kvlab.analysis.comparison.restore import estimate_seconds
from kvlab.common.errors import UserError
from kvlab.common.formatting import format_duration
from kvlab.requests.compare import RescueRequest
from kvlab.trace.reader import Run
from kvlab.trace.restore_results import result_path

MOST_RERUNS = 40
POLL_SECONDS = 1.0


def queue_search(run: Run, most_reruns: int = MOST_RERUNS) -> str | None:
    """Queue a search for this run; the job's id, or None with a sentence."""
    record = run.record
    title = f"Restore the answer: {record.label}"
    fields = {"run_id": record.run_id, "most_reruns": most_reruns, "title": title, "private": record.private}
    return queued(lambda: RescueRequest(**fields))


def button(run: Run, key: str, label: str = "Restore the answer") -> None:
    """A button that starts a search, or opens the one there is."""
    record = run.record
    exists = result_path(runs_root(), record.comparison_id, record.run_id).exists()
    if not permission.button(label, "" if exists else permission.why_not(), icon=":material/mystery:", key=key):
        return
    if exists:
        go("killed", run=record.run_id)
    if job := queue_search(run):
        go("killed", run=record.run_id, search=job)


def estimate(run: Run, most_reruns: int) -> str:
    """The estimated time of a search, in words."""
    seconds = estimate_seconds(run, most_reruns)
    if seconds is None:
        return f"at most {most_reruns} reruns"
    duration = format_duration(max(seconds, 1), rough=True)
    return f"at most {most_reruns} reruns, about {duration} plus the time to load the model"


def follow(job_id: str) -> None:
    """The progress of a search, with a button to stop it; its error if it failed."""
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
    status = live_status(job_id)
    if status is None:
        return
    progress = status.progress
    ahead = (status.position or 1) - 1
    stage = f"Queued: {ahead} jobs ahead" if status.state == "queued" else "Loading the model"
    stage = progress.stage if progress else stage
    left, right = st.columns([6, 1], vertical_alignment="bottom")
    left.progress(progress.done / progress.total if progress and progress.total else 0.0, plain(stage))
    with right:
        why, note = permission.why_not_change([status.owner]), "Results so far are kept."
        if permission.button("Stop", why, key="stop-search", disabled=status.cancelling, help=note) and attempt(
            lambda: jobs.cancel(runs_root(), job_id)
        ):
            st.rerun(scope="fragment")
