"""Speed: the form, progress and results of benchmarks. `?job=` follows one."""

from __future__ import annotations

import streamlit as st

from app.base.text import plain
from app.evaluation.result_rows import ResultsPage, measured_rows
from app.evaluation.speed_results import results, speed_form
from app.figures.figure import page_file
from app.run_views import page
from app.session.url_state import get_param
from kvlab.bench.request import BenchJob
from kvlab.core.errors import UserError

PAGE = ResultsPage("speed", "benchmark", BenchJob, results)


def main() -> None:
    page.heading(
        "Speed",
        "Decoding speed, prefill time and memory of compressed caches, compared with the best full cache in the same "
        "process and with the bounds of this device.",
    )
    job = get_param("job")
    try:
        if job is not None:
            PAGE.follow(job)
        else:
            results_or_form()
    except UserError as error:
        st.error(plain(str(error)))
    page_file("Speed", "Compressed caches compared with the full cache and the bounds of the device.")


def results_or_form() -> None:
    """The results, or the form of a new benchmark."""
    rows = measured_rows("benchmarks")
    if PAGE.shows_form(by_default=rows.empty):
        speed_form()
    else:
        results()


main()
