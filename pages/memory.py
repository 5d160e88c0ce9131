"""Bytes: live, allocated and peak bytes, the health of the cache, and the cost of recording."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.base.text import plain
from app.base.theme import theme as page_theme
from app.base.widgets import one_of
from app.components.tokentext import along_text
from app.figures.figure import show
from app.navigation.selection import current_sources
from app.navigation.shortcuts import page_keys
from app.run_views import page, view
from app.session.open_runs import BY_STAMP
from kvlab.trace.reader import Run
from kvlab.views import health, memory
from kvlab.views.base.provenance import join_sources, of_comparison
from kvlab.views.frames.memory import over_steps

SHAPES = ("stacked", "lines")


def main() -> None:
    page.heading(
        "Bytes",
        "What compression really saves: **live** bytes are those of valid slots, **allocated** those of the tensors, "
        "the **peak** is the most that existed at once within a step, **logical** what the whole text would take.",
    )
    sources = current_sources("budgets")
    if (run := sources.run) is None:
        return
    page.explain_status(run)
    if run.memory.empty:
        page.explain_level(run, "memory at every step")
    else:
        bytes_over_steps(run)
    health_of(sources.runs)
    st.header("What recording costs")
    st.markdown(
        "Every run decodes the full cache's text, recorded, and its own, unrecorded. The recorded rate is that of a "
        "decode step that also takes what recording took. Throughput in kvlab is always the unrecorded "
        "rate."
    )
    table = memory.instrument_cost_frame(sources.runs)
    if not table["off"].notna().any():
        st.info("No run of this comparison has timings.", icon=":material/info:")
        return
    figure = memory.instrument_cost(table, page_theme())
    caption = memory.caption_instrument_cost(table)
    show(figure, table, caption, "memory-instrument", "instrument-cost", of_comparison(sources.runs))


def bytes_over_steps(run: Run) -> None:
    page_keys(steps=True)
    table = memory.memory_stack_frame(run.memory, run.record)
    page.verdict(memory.verdict(table, run.record.label))
    shape = one_of("Draw", SHAPES, key="shape")
    offset = run.record.prompt_tokens - 1
    if shape == SHAPES[0]:
        figure = memory.memory_stack(table, page_theme())
        caption = memory.caption_memory_stack(table)
    else:
        table = over_steps(run.memory, run.record)
        figure = memory.memory_over_steps(table, page_theme())
        caption = memory.caption_memory_over_steps(table)
    page.show_figure(run, along_text(figure, offset=offset), table, caption, "memory-steps", "memory")
    by_layer(run)


@st.fragment
def by_layer(run: Run) -> None:
    step = view.run_scrubber(run)
    table = memory.layer_bytes_frame(run.memory, run.record, step)
    figure = memory.layer_bytes(table, page_theme())
    caption = memory.caption_layer_bytes(table)
    page.show_figure(run, figure, table, caption, "memory-layers", f"memory-step-{step}")


def health_of(runs: Sequence[Run]) -> None:
    st.header("Health of the cache")
    st.markdown(
        "A merged vector should not be longer than the longest of its parts: keys that grow attract attention, and "
        "values that overflow are lost. **Guards** are the methods' own safeguards against such steps."
    )
    table = health_over_steps(list(runs))
    if table.empty:
        st.info("No compressed run of this comparison has recorded its steps.", icon=":material/info:")
        return
    caption = health.caption_growth_over_steps(table)
    if table[list(health.GROWTHS)].isna().all(axis=None):
        st.info(plain(caption), icon=":material/info:")
        return
    figure = health.growth_over_steps(table, page_theme())
    origin = of_comparison(runs)
    show(figure, table, caption, "memory-health", "health", join_sources(origin, page.source(runs[-1])))


@st.cache_data(max_entries=8, hash_funcs=BY_STAMP, show_spinner="Reading the steps of every run")
def health_over_steps(runs: Sequence[Run]) -> pd.DataFrame:
    return health.over_steps(runs)


main()
