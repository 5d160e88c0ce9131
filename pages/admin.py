"""Administration: who runs what, in which order, what they have used, and what is left of the machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd
import streamlit as st

from app.admin.thinning import thinning
from app.base.links import link
from app.base.text import ago, plain, shorten
from app.figures.export_menu import Offer, menu
from app.navigation.selection import runs_root
from app.queue.job_panel import badge
from app.run_views import page
from kvlab import jobs
from kvlab.common.errors import UserError
from kvlab.common.formatting import format_bytes, format_duration
from kvlab.jobs.admin_overview import MemoryNow, Overview, PersonNow, overview, stop_worker
from kvlab.report.views import table_of

POLL_SECONDS = 3.0
NOBODY = "without a name"
ROW = [1.2, 4, 2, 2.4, 1.4, 1.4]


def main() -> None:
    page.heading("Administration", "Who runs what on this server, what they have used, and what is left of it.")
    st.fragment(now, run_every=POLL_SECONDS)()
    thinning()


def now() -> None:
    """The server as it is, asked again every few seconds."""
    try:
        found = overview(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return
    if found.room.warning:
        st.warning(plain(found.room.warning), icon=":material/hard_drive:")
    machine(found)
    queue(found)
    workers(found)
    people(found.people)


def machine(found: Overview) -> None:
    """Memory of host and GPUs, and the disk."""
    room, limit = found.room, found.room.rules.limit
    taken = (
        f"of {format_bytes(limit)} allowed"
        if limit
        else f"{format_bytes(room.free)} of {format_bytes(room.total)} free"
    )
    tiles = [("The folder of runs", format_bytes(room.used), taken), *map(_memory, found.memory)]
    # Side by side as far as they fit: in columns of equal width a small window would cut their words.
    with st.container(horizontal=True):
        for label, value, beside in tiles:
            st.metric(label, value, beside, delta_color="off", delta_arrow="off", border=True, width="content")


def queue(found: Overview) -> None:
    """Every open job in the order in which they run, each with a button that cancels it."""
    st.subheader("Jobs")
    if not found.jobs:
        st.caption("Nothing runs and nothing waits.")
    for job in found.jobs:
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


def workers(found: Overview) -> None:
    """Every worker, what it has and does, and a button that ends it; a fresh one then takes its place."""
    st.subheader("Workers")
    if not found.workers:
        st.caption("No worker lives: one is started with the next job.")
    for worker in found.workers:
        name, what, memory, button = st.columns([2, 5, 2, 2], vertical_alignment="center")
        name.markdown(f"**Worker {worker.place}**", help=f"Process {worker.pid}")
        doing = "waits for a job" if worker.job is None else f"runs {shorten(worker.job.title, 60) or 'a job'}"
        what.markdown(plain(f"{doing} · devices: {worker.devices}"))
        memory.caption("on another machine" if worker.bytes is None else f"{format_bytes(worker.bytes)} of memory")
        if button.button("Restart", key=f"restart-{worker.place}", disabled=not worker.here):
            _do(partial(stop_worker, runs_root(), worker.place))


def people(found: tuple[PersonNow, ...]) -> None:
    """What each person has used of what they may."""
    rows = [
        {
            "who": person.name or NOBODY,
            "running": person.running,
            "waiting": person.waiting,
            "may wait": person.limits.queued,
            "minutes in 24 h": round(person.minutes, 1),
            "may use": "no limit" if person.limits.minutes is None else f"{person.limits.minutes:g} min",
            "disk": format_bytes(person.bytes),
            "may take": "no limit" if person.limits.disk is None else format_bytes(person.limits.disk),
            "runs a request": person.limits.runs,
            "tokens a request": "no limit" if person.limits.tokens is None else f"{person.limits.tokens:,}",
        }
        for person in found
    ]
    table = pd.DataFrame(rows)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="heading-admin-people"):
        st.subheader("People", width="stretch")
        reading = "What each person has used of what they may."
        menu(Offer("People of this server", lambda: table_of(table), reading, "page Administration"), "admin-people")
    if rows:
        names = {"who": st.column_config.TextColumn(width="medium")}
        st.dataframe(
            table, hide_index=True, column_config=names, alt="One row a person: jobs, minutes, disk, and their limits"
        )
    st.caption("Limits are set in the tables `[limits]` and `[disk]` of the lab's file; without one there are none.")


def _memory(memory: MemoryNow) -> tuple[str, str, str]:
    label = "Memory of the host" if memory.name == "host" else memory.name
    return label, format_bytes(memory.used), f"of {format_bytes(memory.total)}"


def _do(action: Callable[[], object]) -> None:
    try:
        action()
    except UserError as error:
        st.error(plain(str(error)))
        return
    st.rerun()


main()
