"""Speed: benchmarks asked for, followed and drawn. With `?job=` in the address it follows one."""

from __future__ import annotations

import streamlit as st

from app.base.text import plain
from app.evaluation.result_rows import ResultsPage, measured_rows
from app.evaluation.speed_form import speed_form
from app.evaluation.speed_results import results
from app.figures.figure import page_file
from app.run_views import page
from kvlab.bench.request import BenchJob
from kvlab.common.errors import UserError

PAGE = ResultsPage("speed", "benchmark", BenchJob, results)


def main() -> None:
    page.heading(
        "Speed",
        "How fast compressed caches decode and read prompts, and what they hold, beside the best full cache in one "
        "process and the bound of this device.",
    )
    job = st.query_params.get("job")
    try:
        if job is not None:
            PAGE.follow(job)
        else:
            look_or_ask()
    except UserError as error:
        st.error(plain(str(error)))
    page_file("Speed", "Compressed caches beside the full cache and the bound of the device.")


def look_or_ask() -> None:
    """What was measured, or the form of another benchmark."""
    rows = measured_rows("benchmarks")
    if PAGE.asks(at_first=rows.empty):
        speed_form(rows)
    else:
        results()


main()
