"""Queue a job with a worker to run it, or show why that is impossible."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app.base.links import go
from app.base.text import plain
from app.navigation.selection import runs_root, session_id
from kvlab import jobs
from kvlab.core.errors import UserError
from kvlab.forms import plan_preview
from kvlab.jobs.work import Work


def queue_job(build: Callable[[], Work]) -> str | None:
    """The id of the job that `build` returns; None, with an error, if it cannot be built or queued."""
    try:
        job_id = submit_job(build())
        jobs.ensure_worker(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return None
    return job_id


def queue_and_open(page: str, build: Callable[[], Work], parameter: str = "job") -> None:
    """Queue the job that `build` returns, and open the page that shows its progress."""
    if job_id := queue_job(build):
        go(page, **{parameter: job_id})


def submit_job(work: Work) -> str:
    """The id of a new job. Raises UserError if it is too large for this machine or refused here."""
    plan_preview.check_work(work)
    return jobs.submit(runs_root(), work, session_id())


def live_status(job_id: str, log_lines: int = 0) -> jobs.JobStatus | None:
    """The status of a job, with a worker to run it; None, with an error, if unreadable. Reruns the page at its end."""
    try:
        status = jobs.status(runs_root(), job_id, log_lines)
        if not status.ended:
            jobs.ensure_worker(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return None
    if status.ended:
        st.rerun()  # without polling
    return status
