"""The results of a benchmark: rates, time within a step, prefill, memory, and the cost of recording, with bounds."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.base.text import plain
from app.base.theme import theme as page_theme
from app.evaluation.result_rows import measured_rows
from app.figures.figure import show
from app.session.url_state import drop_stale_option, in_url
from kvlab.results import speed_tables
from kvlab.views import speed

# Title, whether more is better, and the meaning of the tick.
TITLES = {
    "rate": ("Decode rate", True, speed.DEVICE_BOUND),
    "prefill": ("Seconds to read and compress the prompt", False, speed.DEVICE_BOUND),
    "memory": ("Memory footprint, compared with the budget", False, "the budget"),
    "freed": ("Memory that the device's allocator gave to the cache", False, "the budget"),
}


def results(name: str | None = None) -> None:
    """The pickers and all figures of one file; `name` is the file of a job."""
    rows = measured_rows("benchmarks")
    names = rows.sort_values("timestamp")["name"].drop_duplicates().tolist()[::-1] if len(rows) else []
    if name is not None and name not in names:
        st.info("No results yet: the model is being loaded, or the first part is not finished.")
        return
    if not names:
        st.info("There are no benchmarks in this folder of runs yet: start one above, or with `kvlab bench`.")
        return
    if name is not None:
        st.session_state["file"] = name
    drop_stale_option("file", names)
    left, right = st.columns(2)
    file = left.selectbox("Benchmark", names, **in_url("file"))
    rows = rows[rows["name"] == file]
    load_of = {
        speed_tables.place(speed_tables.rows_of_load(rows, load), load): load for load in speed_tables.loads(rows)
    }
    if not load_of:
        st.info("This file has no measurements of a cache.")
        return
    drop_stale_option("load", list(load_of))
    place = right.selectbox("Measured on", list(load_of), **in_url("load"))
    draw(speed_tables.rows_of_load(rows, load_of[place]), rows, place)


def draw(here: pd.DataFrame, rows: pd.DataFrame, place: str) -> None:
    """All figures of one load that have data."""
    origin = speed_tables.origin(here)
    theme = page_theme()
    copied = speed_tables.bandwidth(rows)
    if copied is not None:
        st.caption(
            plain(f"This device copies {copied:.1f} GB/s; bounds are the bytes to be moved divided by that rate.")
        )
    for name, (title, more, bound) in TITLES.items():
        figure_name, unit = speed_tables.MEASURES[name]
        frame = speed_tables.speed_table(here, figure_name)
        if frame["value"].notna().any():
            figure = speed.measured(frame, unit, place, theme, title, bound)
            caption = speed.caption_measured(frame, unit, more, bound)
            show(figure, frame, caption, f"speed-{name}", f"{name}-{place}", origin)
    parts = speed_tables.split(here)
    if len(parts):
        figure = speed.step_split(parts, place, theme)
        show(figure, parts, speed.caption_step_split(parts), "speed-split", f"step-{place}", origin)
    cost = speed_tables.recording(here)
    if len(cost):
        figure = speed.recording(cost, place, theme)
        show(figure, cost, speed.caption_recording(cost), "speed-recording", f"recording-{place}", origin)
    st.caption(f":material/folder_open: {plain(str(origin))}")
