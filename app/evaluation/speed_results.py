"""The results of a benchmark: rates, the split of a step, prefill, memory and recording's cost, bounds drawn in."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.base.text import plain
from app.base.theme import theme as page_theme
from app.evaluation.result_rows import measured_rows
from app.figures.figure import show
from app.session.url_numbers import forget_unknown
from kvlab.figures import speed as figures
from kvlab.results import speed_tables

# Title, whether more is better, and what the tick is.
TITLES = {
    "rate": ("Decode rate", True, figures.DEVICE_BOUND),
    "prefill": ("Seconds until the prompt is read and compressed", False, figures.DEVICE_BOUND),
    "memory": ("Memory held, beside what the budget promises", False, "what the budget promises"),
    "freed": ("Memory that the device's allocator gave to the cache", False, "what the budget promises"),
}


def results(name: str | None = None) -> None:
    """The pickers and all figures of one file; `name` is the one a job writes to."""
    rows = measured_rows("benchmarks")
    names = rows.sort_values("timestamp")["name"].drop_duplicates().tolist()[::-1] if len(rows) else []
    if name is not None and name not in names:
        st.info("Nothing is measured yet: the model is loaded first, and the first part has to end.")
        return
    if not names:
        st.info("Nothing was measured in this folder of runs yet: start a benchmark above, or with `kvlab bench`.")
        return
    if name is not None:
        st.session_state["file"] = name
    forget_unknown("file", names)
    left, right = st.columns(2)
    with left:
        file = st.selectbox("Benchmark", names, key="file", bind="query-params")
    rows = rows[rows["name"] == file]
    there = {speed_tables.place(speed_tables.at(rows, load), load): load for load in speed_tables.loads(rows)}
    if not there:
        st.info("This file holds nothing that was measured of a cache.")
        return
    forget_unknown("load", list(there))
    with right:
        place = st.selectbox("Measured on", list(there), key="load", bind="query-params")
    draw(speed_tables.at(rows, there[place]), rows, place)


def draw(here: pd.DataFrame, rows: pd.DataFrame, place: str) -> None:
    """Every figure of one load, those without data left out."""
    origin, theme = speed_tables.origin(here), page_theme()
    copied = speed_tables.bandwidth(rows)
    if copied is not None:
        st.caption(plain(f"This device copies {copied:.1f} GB/s; bounds are the bytes that have to move over that."))
    for name, (title, more, bound) in TITLES.items():
        figure_name, unit = speed_tables.MEASURES[name]
        frame = speed_tables.measured(here, figure_name)
        if frame["value"].notna().any():
            figure = figures.measured(frame, unit, place, theme, title, bound)
            reading = figures.read_measured(frame, unit, more, bound)
            show(figure, frame, reading, f"speed-{name}", f"{name}-{place}", origin)
    parts = speed_tables.split(here)
    if len(parts):
        figure = figures.step_split(parts, place, theme)
        show(figure, parts, figures.read_step_split(parts), "speed-split", f"step-{place}", origin)
    cost = speed_tables.recording(here)
    if len(cost):
        figure = figures.recording(cost, place, theme)
        show(figure, cost, figures.read_recording(cost), "speed-recording", f"recording-{place}", origin)
    st.caption(f":material/folder_open: {plain(str(origin))}")
