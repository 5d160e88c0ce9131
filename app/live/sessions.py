"""Live sessions of this server: events, the running job, new actions, and the selection shared with pages of runs."""

import secrets
from typing import Any

import streamlit as st

from app.base.links import link
from app.base.text import plain
from app.navigation.place import TOKEN, share_token, shared_token
from app.navigation.selection import runs_root
from app.queue.job_panel import queue_job
from app.session import url_state
from kvlab import jobs
from kvlab.common.lab import acting, is_owner
from kvlab.core import MethodChoice, UserError
from kvlab.live.events import append_event, read_events
from kvlab.live.transcript import Transcript
from kvlab.requests.live_session import Action, LiveJob, LiveRequest
from kvlab.trace.catalogue import list_runs
from kvlab.views.frames.token_heads import TokenHeads

LAST_JOB = "live-job"


def open_session(request: LiveRequest) -> str | None:
    """The id of a new session whose context is being read; None, with an error, if it cannot be queued."""
    session = secrets.token_hex(8)
    append_event(runs_root(), session, opened_event(request))
    return session if act(session, request, "start") else None


def opened_event(request: LiveRequest) -> dict[str, Any]:
    return {"kind": "opened", "owner": acting().name, "request": request.model_dump(mode="json")}


def act(session: str, request: LiveRequest, action: Action, **fields: Any) -> bool:
    """Queue an action; whether that was possible, else with an error."""
    # The job has the question as its title, or what is done without one.
    done = {
        "branch": "a branch is compressed again",
        "heads": "the heads are read",
        "keep": f"kept as {fields.get('name', '')}",
    }.get(action, "prefixes are opened" if request.prefixes else "the context is read")
    title = str(fields.get("question") or f"Live: {done}")
    job_id = queue_job(lambda: LiveJob(session=session, action=action, request=request, title=title[:80], **fields))
    if job_id is not None:
        st.session_state[LAST_JOB] = session, job_id
    return job_id is not None


def transcript_of(session: str) -> Transcript:
    """What was said so far; only new events are read."""
    known: dict[str, tuple[Transcript, int]] = st.session_state.setdefault("live-transcripts", {})
    transcript, start = known.get(session, (Transcript(), 0))
    events, end = read_events(runs_root(), session, start)
    known[session] = transcript.follow(events), end
    return transcript


def request_of(session: str) -> LiveRequest:
    """The request of a session, with the branches as they were last changed.

    Raises UserError if there is no such session, or it is another user's.
    """
    events, _ = read_events(runs_root(), session)
    opened = next((event for event in events if event.get("kind") == "opened"), None)
    if opened is None or not is_owner(str(opened.get("owner", ""))):
        raise UserError("There is no such session here: begin a new one.")
    request = LiveRequest.model_validate(opened["request"])
    choices = list(request.choices)
    for event in events:
        if event.get("kind") == "branch_changed":
            choices[event["branch"] - 1] = MethodChoice.model_validate(event["choice"])
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


# URL parameters; `span` is there with `token`, its last token, for more than one
BRANCH = "branch"
SPAN = "span"
PAGES = (("wall", "All heads"), ("timeline", "One head"), ("similarity", "Similarity"))
Words = tuple[int, int]  # first and last token
Head = tuple[int, int]  # layer and head


def chosen_words(transcript: Transcript) -> Words | None:
    """The chosen tokens of the context, else the one chosen on another page; None if none are."""
    token = url_state.url_number(TOKEN)
    if token is None and (token := shared_token(transcript.recorded)) is not None:
        url_state.set_param(TOKEN, str(token))
    if token is None or token >= len(transcript.texts):
        return None
    span = url_state.url_numbers(SPAN, 2)
    return (span[0], token) if span and span[0] <= span[1] == token else (token, token)


def choose_words(transcript: Transcript, first: int, last: int) -> None:
    """Put the chosen tokens into the URL, and let pages of the recorded comparison show the last; for a callback."""
    url_state.set_page_param(TOKEN, last)
    if first == last:
        url_state.clear_page_param(SPAN)
    else:
        url_state.set_page_param(SPAN, f"{first}-{last}")
    if transcript.recorded:
        share_token(transcript.recorded[-1], last)


def head_in_focus(heads: TokenHeads | None, token: int | None) -> Head | None:
    """The layer and head chosen here or on another page, else the head of `heads` that reads the token most."""
    layer, head = (
        url_state.parse_number(url_state.url_value(name) or url_state.chosen_value(name)) for name in ("layer", "head")
    )
    if layer is not None and head is not None and (heads is None or heads.has(layer, head)):
        return layer, head
    return None if heads is None or token is None else heads.most_attentive(token)


def share_branch(transcript: Transcript) -> None:
    """Callback: let other pages show the run of the chosen branch."""
    if run := transcript.runs.get(int(st.session_state[BRANCH])):
        url_state.remember("run", run, url=False)


def place_of(words: Words | None, head: Head | None) -> dict[str, str]:
    """The parameters by which other pages show the last chosen token and the head."""
    place = {} if head is None else {"layer": str(head[0]), "head": str(head[1])}
    return place if words is None else {TOKEN: str(words[1]), **place}


def recorded_links(transcript: Transcript, branch: int, words: Words | None, head: Head | None) -> None:
    """Links to the recorded run of a branch on other pages, with the chosen token and head; nothing without a run."""
    run = transcript.runs.get(branch)
    if run is None:
        return
    comparison = transcript.recorded[-1]
    if not any(entry.run_id == run for entry in list_runs(runs_root(), comparison_id=comparison)):
        link("compare", "The comparison is being recorded", job=comparison, run=run, **place_of(words, head))
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="live-recorded"):
        st.markdown(f"**{plain(transcript.branches[branch].label)}**, as recorded:", width="content")
        for name, label in PAGES:
            link(name, label, run=run, **place_of(words, head))
        link("compare", "Result", comparison=comparison)
