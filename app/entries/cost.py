"""Cost: bytes of a run, what a serving engine would have to hold, and speed. `?job=` follows a benchmark."""

import streamlit as st

from app.base.component import after_first_chart
from app.base.text import plain
from app.base.widgets import one_of
from app.evaluation.result_rows import ResultsPage
from app.evaluation.speed_results import results
from app.figures.figure import frame_of, page_file, show_view
from app.figures.tables import csv_button, show_table
from app.navigation import page
from app.navigation.place import page_keys
from app.navigation.selection import current_sources
from kvlab.bench.request import BenchJob
from kvlab.planning.serving_table import LEVELS, read_csv
from kvlab.trace.reader import Run
from kvlab.views import health, memory, serving
from kvlab.views.base.provenance import join_sources, of_comparison, of_run
from kvlab.views.frames import run_pages

SHAPES = ("stacked", "lines")


def memory_page() -> None:
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
        page_keys(steps=True)
        page.verdict(memory.verdict(frame_of("memory", run), run.record.label))
        shape = one_of("Draw", SHAPES, key="shape")
        show_view("memory" if shape == SHAPES[0] else "memory_lines", run, "memory-steps")
        by_layer(run)
    st.header("Health of the cache")
    st.markdown(
        "A merged vector should not be longer than the longest of its parts: keys that grow attract attention, and "
        "values that overflow are lost. **Guards** are the methods' own safeguards against such steps."
    )
    table = frame_of("health", sources.runs)
    if table.empty:
        st.info("No compressed run of this comparison has recorded its steps.", icon=":material/info:")
    elif table[list(health.GROWTHS)].isna().all(axis=None):
        st.info(plain(health.caption_growth_over_steps(table)), icon=":material/info:")
    else:
        show_view(
            "health",
            sources.runs,
            "memory-health",
            source=join_sources(of_comparison(sources.runs), of_run(sources.runs[-1])),
        )
    st.header("What recording costs")
    st.markdown(
        "Every run decodes the full cache's text, recorded, and its own, unrecorded. The recorded rate is that of a "
        "decode step that also takes what recording took. Throughput in kvlab is always the unrecorded "
        "rate."
    )
    if not frame_of("recording_cost", sources.runs)["off"].notna().any():
        st.info("No run of this comparison has timings.", icon=":material/info:")
        return
    show_view("recording_cost", sources.runs, "memory-instrument")


@st.fragment
def by_layer(run: Run) -> None:
    step = page.run_scrubber(run)
    show_view("layer_bytes", run, "memory-layers", step=step)


PAGE_SIZES = {"16": "16 tokens", "32": "32 tokens"}


def serving_page() -> None:
    page.heading(
        "In a serving engine",
        "Would a serving engine save what a method gives up? Engines hold the cache in **pages** of 16 or 32 tokens "
        "for all heads, and free a page only when nothing of it is kept. The **level** (0 to 4) says what the engine "
        "must be able to hold.",
    )
    sources = current_sources("budgets")
    run = sources.run
    if run is not None:
        page.explain_status(run)
    if run is not None and run.record.level != "full":
        page.explain_level(run, "which tokens each head keeps")
    elif run is not None and not page.nothing_recorded(run):
        # The comparison's runs, and the pages of the run in view.
        runs = [one for one in sources.runs if one.record.level == "full" and not one.steps.empty]
        size = int(one_of("Page", PAGE_SIZES, key="page_size"))
        table = frame_of("freed_pages", runs, size=size)
        label = run.record.label
        level, why = table.loc[runs.index(run), ["level", "why"]]
        page.verdict(serving.verdict(table, label))
        st.markdown(plain(f"{label} is level {level} ({why}): an engine must hold {LEVELS[level]}."))
        source = join_sources(of_comparison(runs), of_run(runs[-1]))
        show_view("freed_pages", runs, "serving-freed", source=source, size=size)
        pages_of(run, size)
        after_first_chart(f"serving-{run.record.run_id}", every_method)
        return
    every_method()


@st.fragment
def pages_of(run: Run, size: int) -> None:
    """Which pages of the run stay, and over the steps."""
    step = page.run_scrubber(run)
    left, right = st.columns(2, gap="large")
    with left:
        show_view("pages", run, "serving-map", size=size, step=step)
    with right:
        show_view("pages_over_steps", run, "serving-steps", size=size)


def every_method() -> None:
    st.header("All methods")
    levels = " · ".join(f"**{level}** {words}" for level, words in enumerate(LEVELS))
    st.markdown(f"Measured on mini with a text of 384 tokens at 20 %. An engine must hold, at level {levels}.")
    table = run_pages.servability_table(read_csv())
    show_table(table, "Servability of all methods", "kvlab serve-check --all")
    csv_button(table, "servability")


def speed_page() -> None:
    page.heading(
        "Speed",
        "Decoding speed, prefill time and memory of compressed caches, compared with the best full cache in the same "
        "process and with the bounds of this device.",
    )
    ResultsPage("speed", "Timing", BenchJob, results).show()
    page_file("Speed", "Compressed caches compared with the full cache and the bounds of the device.")
