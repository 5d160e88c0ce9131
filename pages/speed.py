"""Speed: benchmarks asked for, followed and drawn. With `?job=` in the address it follows one."""

from __future__ import annotations

import streamlit as st

from app.parts import page
from app.parts.figure import page_file
from app.parts.job_panel import POLL_SECONDS, show_job
from app.parts.links import go
from app.parts.speed_form import speed_form
from app.parts.speed_results import bench_rows, results
from app.parts.text import plain
from app.state import runs_root
from kvlab import jobs
from kvlab.bench.request import BenchJob
from kvlab.errors import UserError

RESULTS, NEW = "Results", "New benchmark"
REDRAWN_SECONDS = 5 * POLL_SECONDS


def main() -> None:
    page.heading(
        "Speed",
        "How fast compressed caches decode and read prompts, and what they hold, beside the best full cache in one "
        "process and the bound of this device.",
    )
    job = st.query_params.get("job")
    try:
        if job is not None:
            follow(job)
        else:
            look_or_ask()
    except UserError as error:
        st.error(plain(str(error)))
    page_file("Speed", "Compressed caches beside the full cache and the bound of the device.")


def look_or_ask() -> None:
    """What was measured, or the form of another benchmark."""
    rows = bench_rows()
    first = NEW if rows.empty else RESULTS
    view = st.segmented_control(
        "View", [RESULTS, NEW], default=first, key="speed_view", bind="query-params", required=True,
        label_visibility="collapsed",
    )  # fmt: skip
    if view == NEW:
        speed_form(rows)
    else:
        results()


def follow(job_id: str) -> None:
    """A benchmark as it goes, with the parts that are whole."""
    status, request = jobs.status(runs_root(), job_id), jobs.request_of(runs_root(), job_id)
    if not isinstance(request, BenchJob):
        go("new_run", job=job_id)
        return
    show_job(job_id)
    if st.button("Set up another benchmark", icon=":material/add:"):
        go("speed", speed_view=NEW)
    if status.ended:
        results(request.name)
    else:
        st.fragment(results, run_every=REDRAWN_SECONDS)(request.name)


main()
