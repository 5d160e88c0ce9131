"""A job as the queue sees it: place in line, progress, log, cancel, and the runs it made. Polls only while it lasts."""

from __future__ import annotations

import streamlit as st

from app.base import permission
from app.base.links import go, link
from app.base.text import plain
from app.navigation.selection import runs_root
from app.queue.submit import going_on
from kvlab import jobs
from kvlab.analysis.comparison.labels import distinct_names
from kvlab.bench.request import BenchJob
from kvlab.catalogue.methods import methods
from kvlab.common.errors import UserError
from kvlab.common.formatting import format_duration, hide_paths, time_left
from kvlab.evaluate.request import EvalJob, SampleJob
from kvlab.fitting.request import SETTING, FitJob, fitted_file
from kvlab.jobs import JobStatus
from kvlab.jobs.batch import missing_repeats
from kvlab.jobs.work import Work
from kvlab.requests.compare import CompareRequest, RescueRequest
from kvlab.server.settings import lab
from kvlab.server.users import Role, acting
from kvlab.trace.catalogue import list_repeats, list_runs

POLL_SECONDS = 1.0
LOG_LINES = 400
LEAST_SHARE = 0.05  # of the work, from which on the time left is told
PREVIEW_CHARACTERS = 20_000
STATE_BADGES = {
    "queued": ("Waiting", "gray"),
    "running": ("Running", "blue"),
    "complete": ("Complete", "green"),
    "cancelled": ("Cancelled", "orange"),
    "failed": ("Failed", "red"),
}


def show_job(job_id: str) -> None:
    """The panel of one job, redrawn every second until it ends; an unknown id is one sentence."""
    try:
        status = jobs.status(runs_root(), job_id, LOG_LINES)
    except UserError as error:
        st.error(plain(str(error)))
        return
    if status.ended:
        _panel(status)
    else:
        st.fragment(_live, run_every=POLL_SECONDS)(job_id)
    _request(jobs.request_of(runs_root(), job_id))


def badge(state: str, reason: str = "") -> None:
    """The state of a job or a run as a small coloured label; the reason shows when the pointer rests on it."""
    label, colour = STATE_BADGES[state]
    st.badge(label, color=colour, help=plain(reason) or None)  # type: ignore[arg-type]


def _request(request: Work) -> None:
    """What was asked for, with the prompt letter by letter."""
    if isinstance(request, RescueRequest):
        link("killed", "What was found", run=request.run_id)
        return
    if isinstance(request, EvalJob):
        link("quality", "The results so far", evaluation=request.name)
        return
    if isinstance(request, BenchJob):
        link("speed", "The results so far", file=request.name)
        return
    if isinstance(request, FitJob):
        file, method = fitted_file(runs_root(), request.name), request.request.method
        if file.exists():
            st.caption("Its file is ready. In the form of a run, or on the command line:")
            here = f"fit:{request.name}" if lab() else str(file.absolute())
            st.code(f"{method}:{SETTING[method]}={here}", language=None, wrap_lines=True)
            if permission.button("Use it in a new run", permission.why_not(), type="primary", key="use_fitted"):
                title = next((entry.title for entry in methods() if entry.name == method), method)
                go("new_run", model=request.request.model, methods=title, **{f"{method}.{SETTING[method]}": here})
        return
    if isinstance(request, SampleJob):
        return
    count = len(request.choices)
    facts = [request.model, f"{count} {'run' if count == 1 else 'runs'}", f"{request.max_new_tokens} new tokens"]
    facts += [f"{request.comparisons} {_parts(request)}"] if request.is_batch else []
    with st.expander("What was asked for"):
        st.caption(plain(" · ".join([*facts, f"level {request.level}", f"seed {request.seed}"])))
        st.caption(plain(", ".join(choice.label for choice in request.choices)))
        with st.container(height=240):
            st.text(request.prompt[:PREVIEW_CHARACTERS])


def _live(job_id: str) -> None:
    status = going_on(job_id, LOG_LINES)
    if status is not None:
        _panel(status)


def _panel(status: JobStatus) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        badge(status.state)
        st.markdown(f"**{plain(status.title)}**")
        st.space("stretch")
        _actions(status)
    _progress(status)
    if status.message:
        (st.error if status.state == "failed" else st.info)(plain(status.message))
    runs, log = st.columns([2, 3], gap="large")
    with runs:
        _runs(status)
    with log:
        st.caption("Log")
        with st.container(height=320 if len(status.log) > 9 else "content", border=False, autoscroll=True):
            st.code(_log(status.log) or "nothing yet", language=None, wrap_lines=True)


def _log(lines: tuple[str, ...]) -> str:
    """The log as it may be read: on a shared server no folder of the machine stands in it."""
    text = "\n".join(lines)
    return text if acting().role is Role.ADMINISTER else hide_paths(text)


def _actions(status: JobStatus) -> None:
    request = jobs.request_of(runs_root(), status.job_id)
    if isinstance(request, CompareRequest) and request.is_batch:
        _batch_actions(status, request)
    if status.state in ("cancelled", "failed") and not isinstance(request, RescueRequest):
        _go_on(status, request)
    if not status.ended:
        label = "Cancelling …" if status.cancelling else "Cancel"
        if permission.button(label, _why_not(status), key="cancel_job", disabled=status.cancelling):
            try:
                jobs.cancel(runs_root(), status.job_id)
            except UserError as error:
                st.error(plain(str(error)))
                return
            st.rerun()
    elif list_runs(runs_root(), comparison_id=status.job_id, limit=1) and st.button(
        "Compare the runs", type="primary", key="open_comparison"
    ):
        go("compare", comparison=status.job_id)


def _go_on(status: JobStatus, request: Work) -> None:
    """The rest of a job that was cut short: what it saved stays."""
    if not permission.button(_left(status, request), _why_not(status), type="primary", key="go_on"):
        return
    try:
        jobs.go_on(runs_root(), status.job_id)
        jobs.ensure_worker(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return
    st.rerun()


def _why_not(status: JobStatus) -> str:
    return permission.why_not_change([status.owner])


def _left(status: JobStatus, request: Work) -> str:
    """`Go on with 3 of 7`, where it can be counted."""
    if not isinstance(request, CompareRequest):
        return "Go on"
    if request.is_batch:
        missing = missing_repeats(runs_root(), request.batch or status.job_id, request)
        return f"Go on with {len(missing)} of {request.comparisons}"
    made = list_runs(runs_root(), comparison_id=status.job_id, status="complete")
    return f"Go on with {len(request.runs) - len(made)} of {len(request.runs)}"


def _parts(request: CompareRequest) -> str:
    return "repeats" if request.repeats else "prompts"


def _batch_actions(status: JobStatus, request: CompareRequest) -> None:
    """Of a job with repeats: a way to those that are there, and to go on with those that are not."""
    batch = request.batch or status.job_id
    made = list_repeats(runs_root(), batch)
    if made and st.button(f"Compare the {_parts(request)}", type="primary", key="open_batch"):
        go("compare", comparison=made[0].comparison_id)


def _repeats(status: JobStatus, request: CompareRequest) -> None:
    """The repeats that were begun, each with how it ended."""
    made = list_repeats(runs_root(), request.batch or status.job_id)
    for entry in made:
        with st.container(horizontal=True, vertical_alignment="center"):
            badge(entry.status)
            link("compare", plain(f"{entry.number} of {request.comparisons}"), comparison=entry.comparison_id)
    if left := request.comparisons - len(made):
        st.text(f"{left} {'has' if left == 1 else 'have'} not begun.")


def _progress(status: JobStatus) -> None:
    if status.state == "queued":
        ahead = (status.position or 1) - 1
        line = "next in line" if ahead == 0 else f"{ahead} {'job' if ahead == 1 else 'jobs'} before this one"
        st.progress(0.0, f"Waiting: {line}")
        return
    done = status.progress
    share = done.done / done.total if done and done.total else 0.0
    stage = done.stage if done else "starting the worker and loading the model"
    if status.ended:
        stage = f"{STATE_BADGES[status.state][0]} after {format_duration(status.elapsed)}"
        share = 1.0 if status.state == "complete" else share
    else:
        request = jobs.request_of(runs_root(), status.job_id)
        # Repeats and evaluations say themselves what is left.
        tells = isinstance(request, EvalJob) or (isinstance(request, CompareRequest) and request.is_batch)
        left = [time_left(status.elapsed, share)] if share >= LEAST_SHARE and not tells else []
        stage = " · ".join([*told_runs(status), stage, *left, format_duration(status.elapsed)])
    st.progress(min(max(share, 0.0), 1.0), plain(stage))


def told_runs(status: JobStatus) -> list[str]:
    """`3 of 13`: the run that is being made, once one has begun."""
    request = jobs.request_of(runs_root(), status.job_id)
    made = len(list_runs(runs_root(), comparison_id=status.job_id))
    return [f"{made} of {len(request.runs)}"] if made and isinstance(request, CompareRequest) else []


def _runs(status: JobStatus) -> None:
    request = jobs.request_of(runs_root(), status.job_id)
    if isinstance(request, RescueRequest | EvalJob | BenchJob | FitJob):
        return  # it records no run; the page that shows what was found is linked below
    if isinstance(request, SampleJob):
        for run in reversed(list_runs(runs_root(), comparison_id=status.job_id)):
            with st.container(horizontal=True, vertical_alignment="center"):
                badge(run.status, run.message)
                link("timeline", plain(run.label), run=run.run_id)
        return
    if request.is_batch:
        st.caption(_parts(request).capitalize())
        _repeats(status, request)
        return
    planned = request.runs
    st.caption(f"Runs, {len(planned)} in all")
    made = list(reversed(list_runs(runs_root(), comparison_id=status.job_id)))
    names = distinct_names(planned)
    for run, name in zip(made, names, strict=False):
        with st.container(horizontal=True, vertical_alignment="center"):
            badge(run.status, run.message)
            link("timeline", plain(name), run=run.run_id)
    pending = names[len(made) :]
    for name in pending if not status.ended else []:
        with st.container(horizontal=True, vertical_alignment="center"):
            badge("queued")
            st.markdown(plain(name))
    if pending and status.ended:
        st.caption(f"Never begun: {plain(', '.join(pending))}.")
