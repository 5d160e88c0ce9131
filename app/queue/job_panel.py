"""Queuing a job, and its panel: place in the queue, progress, the texts as they are written, actions, runs and log.

It polls until the job ends, and then shows the outcome.
"""

import time
from collections.abc import Callable
from functools import partial

import streamlit as st

from app.base.links import PLACE, from_url, go, link
from app.base.text import plain
from app.base.widgets import attempt, button_unless, why_not_change
from app.navigation.selection import runs_root, session_id
from app.queue.race import show_outcome, show_race
from app.session.url_state import get_param
from kvlab import jobs
from kvlab.bench.request import BenchJob
from kvlab.common.formatting import format_duration, hide_paths, model_title, time_left
from kvlab.common.lab import acting, lab
from kvlab.core.errors import UserError
from kvlab.evaluation.request import EvalJob, SampleJob
from kvlab.forms import plan_preview
from kvlab.jobs.batch import missing_repeats
from kvlab.jobs.client import busy_words, place_words
from kvlab.jobs.job_reporter import read_live
from kvlab.jobs.work import Work
from kvlab.models.fitting.request import SETTING, FitJob, fitted_file
from kvlab.planning.choices import methods
from kvlab.requests.compare import CompareRequest, ImportRequest, RestoreRequest
from kvlab.requests.live_session import LiveJob
from kvlab.trace.catalogue import RunEntry, list_repeats, list_runs
from kvlab.views.frames.labels import distinct_names


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


def follow(job_id: str, draw: Callable[[jobs.JobStatus], None]) -> None:
    """Draw the status of a job, with a worker to run it, in a fragment that polls; the page is rerun at its end."""
    try:
        status = jobs.status(runs_root(), job_id)
        if not status.ended:
            jobs.ensure_worker(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return
    if status.ended:
        st.rerun()  # without polling
    draw(status)


POLL_SECONDS = 1.0
RACE_SECONDS = 0.5
LOG_LINES = 400
LEAST_SHARE = 0.05  # of the work, from which the time left is estimated
PREVIEW_CHARACTERS = 20_000
OPENED = CompareRequest | ImportRequest  # jobs whose result opens by itself
STATE_BADGES = {
    "queued": ("Queued", "gray"),
    "running": ("Running", "blue"),
    "complete": ("Complete", "green"),
    "cancelled": ("Cancelled", "orange"),
    "failed": ("Failed", "red"),
}


def show_job(job_id: str) -> None:
    """The panel of one job, redrawn every second until it ends; one sentence for an unknown id."""
    try:
        status = jobs.status(runs_root(), job_id, LOG_LINES)
        request = jobs.request_of(runs_root(), job_id)
    except UserError as error:
        st.error(plain(str(error)))
        return
    watched = f"watched-{job_id}"
    if status.ended:
        if st.session_state.pop(watched, False) and status.state == "complete" and isinstance(request, OPENED):
            is_batch = isinstance(request, CompareRequest) and request.is_batch
            recorded = list_repeats(runs_root(), getattr(request, "batch", None) or job_id) if is_batch else []
            go("compare", comparison=recorded[0].comparison_id if recorded else job_id)
        _head(status)
        if isinstance(request, CompareRequest):
            show_outcome(status, request)
        _details(status)
    else:
        st.session_state[watched] = True  # when it ends in sight, its result opens by itself
        st.fragment(follow, run_every=POLL_SECONDS)(job_id, _head)
        if isinstance(request, CompareRequest):
            st.fragment(_live_race, run_every=RACE_SECONDS)(job_id)
        st.fragment(_live_details, run_every=3 * POLL_SECONDS)(job_id)
    _request(request, "Results" if status.ended else "Results so far")


def badge(state: str, reason: str = "") -> None:
    """The state of a job or run as a coloured label, with the reason as its tooltip."""
    label, colour = STATE_BADGES[state]
    st.badge(label, color=colour, help=plain(reason) or None)  # type: ignore[arg-type]  # one of the colours of a badge


def _request(request: Work, results: str) -> None:
    """The request, or a link to its results with the label `results`."""
    if isinstance(request, RestoreRequest):
        link("restore", "Results", run=request.run_id)
        return
    if isinstance(request, EvalJob):
        link("quality", results, evaluation=request.name)
        return
    if isinstance(request, BenchJob):
        link("speed", results, file=request.name)
        return
    if isinstance(request, FitJob):
        file = fitted_file(runs_root(), request.name)
        method = request.request.method
        if file.exists():
            st.caption("The file is ready. Use it in the form of a run, or on the command line:")
            value = f"fit:{request.name}" if lab() else str(file.absolute())
            st.code(f"{method}:{SETTING[method]}={value}", language=None, wrap_lines=True)
            if st.button("Use it in a new run", type="primary", key="use_fitted"):
                title = next((entry.title for entry in methods() if entry.name == method), method)
                go("new_run", model=request.request.model, methods=title, **{f"{method}.{SETTING[method]}": value})
        return
    if isinstance(request, LiveJob):
        link("live", "The conversation", session=request.session)
        return
    if isinstance(request, SampleJob | ImportRequest):
        return
    count = len(request.choices)
    facts = [
        model_title(request.model),
        f"{count} {'run' if count == 1 else 'runs'}",
        f"{request.max_new_tokens} new tokens",
    ]
    facts += [f"{request.comparisons} {_parts(request)}"] if request.is_batch else []
    with st.expander("Request"):
        st.caption(plain(" · ".join([*facts, f"level {request.level}", f"seed {request.seed}"])))
        st.caption(plain(", ".join(choice.label for choice in request.choices)))
        with st.container(height=240):
            st.text(request.prompt[:PREVIEW_CHARACTERS])


def _live_race(job_id: str) -> None:
    """Reads one small file and nothing of the queue, as it is redrawn often on a machine that computes."""
    if (live := read_live(runs_root(), job_id)) is not None:
        show_race(live)


def _live_details(job_id: str) -> None:
    try:
        _details(jobs.status(runs_root(), job_id, LOG_LINES))
    except UserError:
        return  # the head says it


def _head(status: jobs.JobStatus) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        badge(status.state)
        st.markdown(f"**{plain(status.title)}**")
        st.space("stretch")
        request = jobs.request_of(runs_root(), status.job_id)
        if isinstance(request, CompareRequest) and request.is_batch:
            # A button that compares the repeats recorded so far.
            batch = request.batch or status.job_id
            recorded = list_repeats(runs_root(), batch)
            if recorded and st.button(f"Compare the {_parts(request)}", type="primary", key="open_batch"):
                go("compare", comparison=recorded[0].comparison_id)
        if status.state in ("cancelled", "failed") and not isinstance(request, RestoreRequest | ImportRequest):
            _resume(status, request)
        if not status.ended:
            label = "Cancelling …" if status.cancelling else "Cancel"
            why = why_not_change([status.owner])
            if button_unless(label, why, key="cancel_job", disabled=status.cancelling) and attempt(
                lambda: jobs.cancel(runs_root(), status.job_id)
            ):
                st.rerun()
        elif list_runs(runs_root(), comparison_id=status.job_id, limit=1) and st.button(
            "Compare the runs", type="primary", key="open_comparison"
        ):
            go("compare", comparison=status.job_id)
        elif isinstance(request, CompareRequest):
            # The run in the URL, if it is of this comparison and was recorded, else the last one.
            runs = [entry.run_id for entry in list_runs(runs_root(), comparison_id=status.job_id)]
            chosen = get_param("run")
            if run := chosen if chosen in runs else next(iter(runs), None):
                link("wall", "All heads", run=run, **from_url(PLACE))
    _progress(status)
    if status.message:
        (st.error if status.state == "failed" else st.info)(plain(status.message))


def _details(status: jobs.JobStatus) -> None:
    runs, log = st.columns([2, 3], gap="large")
    with runs:
        request = jobs.request_of(runs_root(), status.job_id)
        if isinstance(request, SampleJob | ImportRequest):
            for run in reversed(list_runs(runs_root(), comparison_id=status.job_id)):
                _run_row(run, run.label)
        elif isinstance(request, CompareRequest) and request.is_batch:
            st.caption(_parts(request).capitalize())
            # The repeats that have started, with their status.
            repeats = list_repeats(runs_root(), request.batch or status.job_id)
            for entry in repeats:
                with st.container(horizontal=True, vertical_alignment="center"):
                    badge(entry.status)
                    link("compare", plain(f"{entry.number} of {request.comparisons}"), comparison=entry.comparison_id)
            if left := request.comparisons - len(repeats):
                st.text(f"{left} {'has' if left == 1 else 'have'} not started.")
        elif isinstance(request, CompareRequest):
            planned = request.runs
            st.caption(f"Runs: {len(planned)} in total")
            started = list(reversed(list_runs(runs_root(), comparison_id=status.job_id)))
            names = distinct_names(planned)
            for run, name in zip(started, names, strict=False):
                _run_row(run, name)
            pending = names[len(started) :]
            for name in pending if not status.ended else []:
                with st.container(horizontal=True, vertical_alignment="center"):
                    badge("queued")
                    st.markdown(plain(name))
            if pending and status.ended:
                st.caption(f"Not started: {plain(', '.join(pending))}.")
        # Other jobs record no runs; their results are linked below.
    with log:
        st.caption("Log")
        with st.container(height=320 if len(status.log) > 9 else "content", border=False, autoscroll=True):
            log_text = "\n".join(status.log)
            if not acting().owns_all:
                log_text = hide_paths(log_text)  # names of folders of a shared server
            st.code(log_text or "nothing yet", language=None, wrap_lines=True)


def _resume(status: jobs.JobStatus, request: Work) -> None:
    """A button that resumes a stopped job; what it saved is kept."""
    # `Resume with 3 of 7`, if that can be counted.
    label = "Resume"
    if isinstance(request, CompareRequest) and request.is_batch:
        missing = missing_repeats(runs_root(), request.batch or status.job_id, request)
        label = f"Resume with {len(missing)} of {request.comparisons}"
    elif isinstance(request, CompareRequest):
        complete = list_runs(runs_root(), comparison_id=status.job_id, status="complete")
        label = f"Resume with {len(request.runs) - len(complete)} of {len(request.runs)}"
    why = why_not_change([status.owner])
    if (
        button_unless(label, why, type="primary", key="go_on")
        and attempt(partial(jobs.resume, runs_root(), status.job_id))
        and attempt(partial(jobs.ensure_worker, runs_root()))
    ):
        st.rerun()


def _parts(request: CompareRequest) -> str:
    return "repeats" if request.repeats else "prompts"


def _progress(status: jobs.JobStatus) -> None:
    busy = "" if status.ended else busy_words()
    if status.state == "queued":
        line = " · ".join(filter(None, [place_words(runs_root(), status), busy]))
        st.progress(0.0, plain(f"Queued: {line}"))
        return
    done = status.progress
    share = done.done / done.total if done and done.total else 0.0
    stage = done.stage if done else "starting the worker and loading the model"
    if status.ended:
        stage = f"{STATE_BADGES[status.state][0]} after {format_duration(status.elapsed)}"
        share = 1.0 if status.state == "complete" else share
    else:
        request = jobs.request_of(runs_root(), status.job_id)
        # The stage of batches and evaluations includes the time left.
        has_time = isinstance(request, EvalJob) or (isinstance(request, CompareRequest) and request.is_batch)
        left = "" if has_time else words_left(status, share, isinstance(request, CompareRequest), time.time())
        # `3 of 13 runs` or `13 runs`: those that have started, once one has.
        started = len(list_runs(runs_root(), comparison_id=status.job_id))
        count = ""
        if started and isinstance(request, CompareRequest):
            total = len(request.runs)
            count = f"{total} runs" if started == total else f"{started} of {total} runs"
        stage = " · ".join(filter(None, [count, stage, left, format_duration(status.elapsed), busy]))
    st.progress(min(max(share, 0.0), 1.0), plain(stage))


def words_left(status: jobs.JobStatus, share: float, is_comparison: bool, now: float) -> str:
    """`about 8 s left`, by the comparison's own estimate or else by the share of the work that is done."""
    if not is_comparison:
        return time_left(status.elapsed, share) if share >= LEAST_SHARE else ""
    if status.progress is None or status.progress.expected_end is None:
        return ""
    seconds = status.progress.expected_end - now
    return f"about {format_duration(seconds, rough=True)} left" if seconds > 0 else "longer than estimated"


def _run_row(run: RunEntry, name: str) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        badge(run.status, run.message)
        link("timeline", plain(name), run=run.run_id, **from_url(PLACE))
