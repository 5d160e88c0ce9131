"""Live sessions of this server: their events, the job that is running, and new actions."""

from __future__ import annotations

import secrets
from typing import Any

import streamlit as st

from app.base.text import plain
from app.navigation.selection import runs_root
from app.queue.submit import queue_job
from kvlab import jobs
from kvlab.common.lab import acting, is_owner
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.live.events import append_event, fork_log, read_events
from kvlab.live.transcript import Transcript
from kvlab.requests.live_session import Action, LiveJob, LiveRequest

LAST_JOB = "live-job"


def open_session(request: LiveRequest) -> str | None:
    """The id of a new session whose context is being read; None, with an error, if it cannot be queued."""
    session = secrets.token_hex(8)
    append_event(runs_root(), session, _opened(request))
    return session if act(session, request, "start") else None


def fork_session(session: str, request: LiveRequest, turn: int) -> str:
    """The id of a new session with what was said before question `turn`; nothing is read until its first question."""
    other = secrets.token_hex(8)
    fork_log(runs_root(), session, other, turn, _opened(request))
    return other


def _opened(request: LiveRequest) -> dict[str, Any]:
    return {"kind": "opened", "owner": acting().name, "request": request.model_dump(mode="json")}


def act(session: str, request: LiveRequest, action: Action, **fields: Any) -> bool:
    """Queue an action; whether that was possible, else with an error."""
    title = str(fields.get("question") or _title(request, action, str(fields.get("name", ""))))
    job_id = queue_job(lambda: LiveJob(session=session, action=action, request=request, title=title[:80], **fields))
    if job_id is not None:
        st.session_state[LAST_JOB] = session, job_id
    return job_id is not None


def _title(request: LiveRequest, action: Action, name: str) -> str:
    """Title of the job of an action without a question."""
    changes = {"lane": "a lane is compressed again", "heads": "the heads are read", "keep": f"kept as {name}"}
    begins = "prefixes are opened" if request.prefixes else "the context is read"
    return f"Live: {changes.get(action, begins)}"


def transcript_of(session: str) -> Transcript:
    """What was said so far; only new events are read."""
    known: dict[str, tuple[Transcript, int]] = st.session_state.setdefault("live-transcripts", {})
    transcript, start = known.get(session, (Transcript(), 0))
    events, end = read_events(runs_root(), session, start)
    known[session] = transcript.follow(events), end
    return transcript


def request_of(session: str) -> LiveRequest:
    """The request of a session, with the lanes as they were last changed.

    Raises UserError if there is no such session, or it is another user's.
    """
    events, _ = read_events(runs_root(), session)
    opened = next((event for event in events if event.get("kind") == "opened"), None)
    if opened is None or not is_owner(str(opened.get("owner", ""))):
        raise UserError("There is no such session here: begin a new one.")
    request = LiveRequest.model_validate(opened["request"])
    choices = list(request.choices)
    for event in events:
        if event.get("kind") == "lane_changed":
            choices[event["lane"] - 1] = MethodChoice.model_validate(event["choice"])
    return request.model_copy(update={"choices": tuple(choices)})


def running_job(session: str) -> jobs.JobStatus | None:
    """The job of this session that waits or runs, also one of another tab; None if there is none."""
    known = st.session_state.get(LAST_JOB)
    if known is not None and known[0] == session:
        status = jobs.status(runs_root(), known[1])
        if not status.ended:
            return status
    for job in jobs.list_jobs(runs_root(), open_only=True):
        request = jobs.request_of(runs_root(), job.job_id)
        if isinstance(request, LiveJob) and request.session == session:
            st.session_state[LAST_JOB] = session, job.job_id
            return job
    return None


def waiting(job: jobs.JobStatus | None, words: str) -> None:
    """The reason why the session waits: another job of the queue, or its own."""
    if job is not None and job.position is not None:
        words = f"Waiting: number {job.position} in the queue."
    st.caption(plain(words))


def last_failure(session: str) -> str:
    """Why the session's last job failed; empty if it did not."""
    known = st.session_state.get(LAST_JOB)
    if known is None or known[0] != session:
        return ""
    status = jobs.status(runs_root(), known[1])
    return status.message if status.state == "failed" else ""
