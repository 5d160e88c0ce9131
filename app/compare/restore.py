"""Searches that restore a wrong run's answer: buttons that queue them, their progress, and what they found."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import streamlit as st

from app.base.links import go
from app.base.text import plain
from app.base.widgets import attempt, button_unless, why_not_change
from app.queue.job_panel import follow, queue_job
from app.session.open_runs import BY_STAMP, open_cached, runs_root
from kvlab import jobs
from kvlab.common.formatting import format_duration
from kvlab.core.errors import UserError
from kvlab.requests.compare import RestoreRequest
from kvlab.trace.reader import Run
from kvlab.trace.restore_results import RestoreResult, load_result, result_path
from kvlab.views.frames.restore import estimate_seconds, sentence

MOST_RERUNS = 40
EACH = f"at most {MOST_RERUNS} reruns each"
MOST_JOBS = 500  # open jobs that are looked through for searches
POLL_SECONDS = 1.0


def queue_search(run: Run, most_reruns: int = MOST_RERUNS) -> str | None:
    """Queue a search for this run; the job's id, or None with a sentence."""
    record = run.record
    title = f"Restore the answer: {record.label}"
    fields = {"run_id": record.run_id, "most_reruns": most_reruns, "title": title, "private": record.private}
    return queue_job(lambda: RestoreRequest(**fields))


def button(run: Run, key: str, label: str = "Restore the answer") -> None:
    """A button that starts a search, or opens the one there is."""
    record = run.record
    exists = result_path(runs_root(), record.comparison_id, record.run_id).exists()
    if not st.button(label, icon=":material/mystery:", key=key):
        return
    if exists:
        go("restore", run=record.run_id)
    if job := queue_search(run):
        go("restore", run=record.run_id, search=job)


def results_of(runs: Iterable[tuple[str, str]]) -> dict[str, RestoreResult]:
    """The results there are by run id, of runs given by comparison and run id; a damaged file is one sentence."""
    found = {}
    for comparison_id, run_id in runs:
        file = result_path(runs_root(), comparison_id, run_id)
        try:
            if file.exists() and (result := _load(str(runs_root()), comparison_id, run_id, file.stat().st_mtime_ns)):
                found[run_id] = result
        except UserError as error:
            st.error(plain(str(error)))
    return found


@st.cache_data(max_entries=2048, show_spinner=False)
def _load(root: str, comparison_id: str, run_id: str, written: int) -> RestoreResult | None:
    return load_result(Path(root), comparison_id, run_id)


cached_sentence = st.cache_data(max_entries=256, show_spinner=False, hash_funcs=BY_STAMP | {RestoreResult: repr})(
    sentence
)


def search_all(run_ids: Sequence[str], duration: str, key: str) -> None:
    """A button that queues a search for each of these runs, and how many are in the queue already.

    `duration` is the estimated time in words.
    """
    waiting: set[str] = set()
    if run_ids:
        with suppress(UserError):
            queued = jobs.list_jobs(runs_root(), open_only=True, limit=MOST_JOBS)
            requests = [jobs.request_of(runs_root(), job.job_id) for job in queued]
            waiting = {request.run_id for request in requests if isinstance(request, RestoreRequest)}
    missing = [run_id for run_id in run_ids if run_id not in waiting]
    if count := len(run_ids) - len(missing):
        searches = "A search is" if count == 1 else f"{count} searches are"
        st.caption(f"{searches} in the queue for the failed runs: open the page again for the results.")
    if not missing:
        return
    label = "Restore the answer of " + ("the failed run" if len(missing) == 1 else f"all {len(missing)} failed runs")
    words = f"In the background, {duration}. What is found appears here."
    if st.button(label, icon=":material/mystery:", key=key, help=words):
        for run_id in missing:
            try:
                is_queued = queue_search(open_cached(runs_root() / run_id)) is not None
            except UserError as error:
                st.error(plain(str(error)))
                return  # the others would fail alike
            if not is_queued:
                st.error("The remaining searches are not queued.")
                return
        st.rerun()


def estimate(run: Run, short: bool = False) -> str:
    """The estimated time of a search in words, in short such as `about 4 min`."""
    seconds = estimate_seconds(run, MOST_RERUNS)
    most = f"at most {MOST_RERUNS} reruns"
    if seconds is None:
        return EACH if short else most
    duration = f"about {format_duration(max(seconds, 1), rough=True)}"
    return duration if short else f"{most}, {duration} plus the time to load the model"


def show_search(job_id: str) -> None:
    """The progress of a search, with a button to stop it; its error if it failed."""
    try:
        status = jobs.status(runs_root(), job_id)
    except UserError as error:
        st.error(plain(str(error)))
        return
    if not status.ended:
        st.fragment(follow, run_every=POLL_SECONDS)(job_id, _progress)
    elif status.state == "failed":
        st.warning(plain(status.message))


def _progress(status: jobs.JobStatus) -> None:
    progress = status.progress
    ahead = (status.position or 1) - 1
    stage = f"Queued: {ahead} jobs ahead" if status.state == "queued" else "Loading the model"
    stage = progress.stage if progress else stage
    left, right = st.columns([6, 1], vertical_alignment="bottom")
    left.progress(progress.done / progress.total if progress and progress.total else 0.0, plain(stage))
    with right:
        why = why_not_change([status.owner])
        note = "Results so far are kept."
        if button_unless("Stop", why, key="stop-search", disabled=status.cancelling, help=note) and attempt(
            lambda: jobs.cancel(runs_root(), status.job_id)
        ):
            st.rerun(scope="fragment")
