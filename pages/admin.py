"""Administration: jobs in their order, workers, what each user has used, and the machine's free memory and disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd
import streamlit as st

from app.base.links import link
from app.base.text import ago, plain, shorten
from app.base.widgets import attempt
from app.figures.export_menu import Offer, menu
from app.navigation.selection import runs_root
from app.queue.job_panel import badge
from app.run_views import page
from kvlab import jobs
from kvlab.common.formatting import format_bytes, format_duration
from kvlab.core.errors import UserError
from kvlab.jobs.admin_overview import MemoryUsage, Overview, UserUsage, overview, stop_worker
from kvlab.report.views import table_of
from kvlab.server.quotas import disk_rules
from kvlab.trace.thinning import DAY, thin, thinnable

POLL_SECONDS = 3.0
NOBODY = "without a name"
ROW = [1.2, 4, 2, 2.4, 1.4, 1.4]


def main() -> None:
    page.heading(
        "Administration", "Jobs and workers of this server, what each user has used, and free memory and disk space."
    )
    st.fragment(show_state, run_every=POLL_SECONDS)()
    thinning()


def show_state() -> None:
    """The server's state, redrawn every few seconds."""
    try:
        server = overview(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return
    if server.room.warning:
        st.warning(plain(server.room.warning), icon=":material/hard_drive:")
    machine(server)
    queue(server)
    workers(server)
    people(server.people)


def machine(server: Overview) -> None:
    """Memory of host and GPUs, and the disk."""
    room, limit = server.room, server.room.rules.limit
    taken = (
        f"of {format_bytes(limit)} allowed"
        if limit
        else f"{format_bytes(room.free)} of {format_bytes(room.total)} free"
    )
    tiles = [("The folder of runs", format_bytes(room.used), taken), *map(_memory, server.memory)]
    # Columns of equal width would cut the labels in a small window.
    with st.container(horizontal=True):
        for label, value, note in tiles:
            st.metric(label, value, note, delta_color="off", delta_arrow="off", border=True, width="content")


def queue(server: Overview) -> None:
    """Open jobs in the order in which they run, each with a button that cancels it."""
    st.header("Jobs")
    if not server.jobs:
        st.caption("No job is running or queued.")
    for job in server.jobs:
        state, title, owner, where, since, button = st.columns(ROW, vertical_alignment="center")
        with state:
            badge(job.state)
        with title:
            link("new_run", plain(shorten(job.title, 40)) or "a job", job=job.job_id)
        owner.text(job.owner or NOBODY)
        stage = job.progress.stage if job.progress else "starting"
        where.caption(plain(f"worker {job.worker}: {stage}" if job.state == "running" else f"place {job.position}"))
        since.caption(format_duration(job.elapsed) if job.state == "running" else ago(job.created))
        label = "Cancelling …" if job.cancelling else "Cancel"
        if button.button(label, key=f"cancel-{job.job_id}", disabled=job.cancelling):
            _do(partial(jobs.cancel, runs_root(), job.job_id))


def workers(server: Overview) -> None:
    """Workers with their devices, jobs and memory, each with a button that replaces it."""
    st.header("Workers")
    if not server.workers:
        st.caption("No worker is running; the next job starts one.")
    for worker in server.workers:
        name, what, memory, button = st.columns([2, 5, 2, 2], vertical_alignment="center")
        name.markdown(f"**Worker {worker.place}**", help=f"Process {worker.pid}")
        doing = "idle" if worker.job is None else f"runs {shorten(worker.job.title, 60) or 'a job'}"
        what.markdown(plain(f"{doing} · devices: {worker.devices}"))
        memory.caption("on another machine" if worker.bytes is None else f"{format_bytes(worker.bytes)} of memory")
        if button.button("Restart", key=f"restart-{worker.place}", disabled=not worker.here):
            _do(partial(stop_worker, runs_root(), worker.place))


def people(persons: tuple[UserUsage, ...]) -> None:
    """What each user has used, and their limits."""
    rows = [
        {
            "user": person.name or NOBODY,
            "running": person.running,
            "queued": person.waiting,
            "queue limit": person.limits.queued,
            "minutes in 24 h": round(person.minutes, 1),
            "minutes limit": "no limit" if person.limits.minutes is None else f"{person.limits.minutes:g} min",
            "disk": format_bytes(person.bytes),
            "disk limit": "no limit" if person.limits.disk is None else format_bytes(person.limits.disk),
            "runs per request": person.limits.runs,
            "tokens per request": "no limit" if person.limits.tokens is None else f"{person.limits.tokens:,}",
        }
        for person in persons
    ]
    table = pd.DataFrame(rows)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="heading-admin-people"):
        st.header("Users", width="stretch")
        caption = "What each user has used, and their limits."
        menu(Offer("Users of this server", lambda: table_of(table), caption, "page Administration"), "admin-people")
    if rows:
        names = {"user": st.column_config.TextColumn(width="medium")}
        st.dataframe(
            table, hide_index=True, column_config=names, alt="One row per user: jobs, minutes, disk, and their limits"
        )
    st.caption(
        "Limits are set in the tables `[limits]` and `[disk]` of the lab's settings file; the default is no limit."
    )


def _memory(memory: MemoryUsage) -> tuple[str, str, str]:
    label = "Memory of the host" if memory.name == "host" else memory.name
    return label, format_bytes(memory.used), f"of {format_bytes(memory.total)}"


def thinning() -> None:
    """Delete the arrays of recordings older than a number of days, after a confirmation."""
    st.header("Old recordings")
    try:
        rule = disk_rules().thin_older_than
        days = st.number_input(
            "Older than … days", 0, 3650, round(rule / DAY) if rule else 30, key="thin_days", width=200
        )
        recordings = thinnable(runs_root(), days * DAY)
    except UserError as error:
        st.error(plain(str(error)))
        return
    size = format_bytes(sum(run.bytes for run in recordings))
    st.caption(
        f"{len(recordings):,} recordings have {size} of arrays (keys, values, attention rows). Without them the pages "
        "still show tables, texts, memory and speed. Starred comparisons are left alone."
    )
    if not recordings:
        return
    with st.popover(f"Thin {len(recordings):,}", icon=":material/compress:"):
        st.markdown("This cannot be undone: to get the arrays back, a run must be recorded again.")
        if st.button(f"Delete {size} of arrays", type="primary", key="thin"):
            try:
                freed = thin(runs_root(), recordings)
            except UserError as error:
                st.error(plain(str(error)))
                return
            st.success(f"{format_bytes(freed)} freed.")


def _do(action: Callable[[], object]) -> None:
    if attempt(action):
        st.rerun()


main()
