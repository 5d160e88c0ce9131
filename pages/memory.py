"""Memory and cost: what is live, allocated and needed at the peak, and what recording a run costs in speed."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.base.segmented import one_of
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.components.tokentext import along_text
from app.figures.figure import show
from app.navigation.selection import current_sources
from app.navigation.shortcuts import page_keys
from app.run_views import page, view
from kvlab.analysis.attention import health
from kvlab.analysis.comparison import cost
from kvlab.analysis.comparison.memory import over_steps
from kvlab.figures import cost as figures
from kvlab.figures import health as health_figures
from kvlab.figures import memory as memory_figures
from kvlab.results.provenance import joined, of_comparison
from kvlab.trace.reader import Run

SHAPES = ("stacked", "lines")


def main() -> None:
    page.heading(
        "Memory and cost",
        "Compression is worth what it really frees: **live** bytes are valid slots, **allocated** is what the tensors "
        "take, the **peak** is what was needed for a moment, **logical** what the whole text would take.",
    )
    sources = current_sources()
    if (run := sources.run) is None:
        return
    page.explain_status(run)
    if run.memory.empty:
        page.explain_level(run, "memory at every step")
    else:
        bytes_over_steps(run)
    health_of(sources.runs)
    instrument(sources.runs)


def bytes_over_steps(run: Run) -> None:
    page_keys(steps=True)
    shape = one_of("Draw", SHAPES, key="shape")
    offset, name = run.record.prompt_tokens - 1, page.file_name(run, "memory")
    if shape == SHAPES[0]:
        table = cost.memory_stack(run.memory, run.record)
        figure, reading = figures.memory_stack(table, page_theme()), figures.read_memory_stack(table)
    else:
        table = over_steps(run.memory, run.record)
        figure, reading = memory_figures.memory_truth(table, page_theme()), memory_figures.read_memory_truth(table)
    show(along_text(figure, offset=offset), table, reading, "memory-steps", name, page.source(run))
    by_layer(run)


@st.fragment
def by_layer(run: Run) -> None:
    step = view.run_scrubber(run)
    table = cost.layer_bytes(run.memory, run.record, step)
    figure, reading = figures.layer_bytes(table, page_theme()), figures.read_layer_bytes(table)
    show(figure, table, reading, "memory-layers", page.file_name(run, f"memory-step-{step}"), page.source(run))


def health_of(runs: Sequence[Run]) -> None:
    st.subheader("Health of the cache")
    st.markdown(
        "A merge should not make a vector longer than the longest it was made of: keys that grow draw attention to "
        "themselves, and numbers that overflow are lost. **Guards** are the methods' own brakes on such steps."
    )
    table = health_over_steps(list(runs), tuple(page.stamp(run) for run in runs))
    if table.empty:
        st.info("No compressed run of this comparison has recorded its steps.", icon=":material/info:")
        return
    reading = health_figures.read_growth_over_steps(table)
    if table[list(health.GROWTHS)].isna().all(axis=None):
        st.info(plain(reading), icon=":material/info:")
        return
    figure, origin = health_figures.growth_over_steps(table, page_theme()), of_comparison(runs)
    show(figure, table, reading, "memory-health", "health", joined(origin, page.source(runs[-1])))


@st.cache_data(max_entries=8, show_spinner="Reading the steps of every run")
def health_over_steps(_runs: Sequence[Run], stamps: tuple[tuple[str, int], ...]) -> pd.DataFrame:
    return health.over_steps(_runs)


def instrument(runs: Sequence[Run]) -> None:
    st.subheader("What recording costs")
    st.markdown(
        "Every run is decoded twice: once recorded, over the full cache's text, and once bare, writing its own. The "
        "rates beside each other say what watching costs. Throughput in kvlab is always the bare one; "
        "`kvlab bench overhead` measures the same step in turns, with every level."
    )
    table = cost.instrument_cost(runs)
    if not table["off"].notna().any():
        st.info("No run of this comparison was timed.", icon=":material/info:")
        return
    figure, reading = figures.instrument_cost(table, page_theme()), figures.read_instrument_cost(table)
    show(figure, table, reading, "memory-instrument", "instrument-cost", of_comparison(runs))


main()
