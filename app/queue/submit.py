"""What pages ask of the queue: a job goes in with a worker to run it, or the page says in one sentence why not."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app.base.text import plain
from app.navigation.selection import runs_root, session_id
from kvlab import jobs
from kvlab.common.errors import UserError
from kvlab.forms import plan_preview
from kvlab.jobs.work import Work
from kvlab.server.users import Role, require


def queued(make: Callable[[], Work]) -> str | None:
    """The id of the job that `make` makes; None where it cannot be made or queued, which was then said."""
    try:
        job_id = submitted(make())
        jobs.ensure_worker(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return None
    return job_id


def submitted(work: Work) -> str:
    """The id of a new job. Raises UserError where it is too big for this machine, or may not be queued."""
    require(Role.RUN, "start runs")
    plan_preview.check_work(work, runs_root())
    return jobs.submit(runs_root(), work, session_id())


def going_on(job_id: str, log_lines: int = 0) -> jobs.JobStatus | None:
    """How far a job is, with a worker to run it; None, said, where that cannot be read. Draws anew once it ended."""
    try:
        status = jobs.status(runs_root(), job_id, log_lines)
        if not status.ended:
            jobs.ensure_worker(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return None
    if status.ended:
        st.rerun()  # once more without polling
    return status
