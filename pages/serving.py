"""Serving: what a serving engine would have to hold for the runs in view, and for every method."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.base.lazy_views import after_first_chart
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.base.widgets import one_of
from app.components.tokentext import along_text
from app.figures.figure import show
from app.figures.tables import csv_button, show_table
from app.navigation.selection import current_sources
from app.run_views import page, view
from app.session.open_runs import BY_STAMP
from kvlab.planning.serving_table import LEVELS, Servability, read_csv
from kvlab.trace.reader import Run
from kvlab.views import serving
from kvlab.views.base.provenance import join_sources, of_comparison
from kvlab.views.frames import run_pages
from kvlab.views.frames.wall import Wall, wall_of

PAGE_SIZES = {"16": "16 tokens", "32": "32 tokens"}


def main() -> None:
    page.heading(
        "Serving",
        "Would a serving engine save what a method gives up? Engines hold the cache in **pages** of 16 or 32 tokens "
        "for all heads, and free a page only when nothing of it is kept. The **level** (0 to 4) says what the engine "
        "must be able to hold.",
    )
    sources = current_sources("budgets")
    run = sources.run
    if run is None or not records_tokens(run):
        every_method()
        return
    of_runs(run, [one for one in sources.runs if one.record.level == "full" and not one.steps.empty])
    after_first_chart(f"serving-{run.record.run_id}", every_method)


def records_tokens(run: Run) -> bool:
    """Whether the run says which tokens each head keeps, with a sentence if not."""
    page.explain_status(run)
    if run.record.level != "full":
        page.explain_level(run, "which tokens each head keeps")
        return False
    return not view.nothing_recorded(run)


def of_runs(run: Run, runs: Sequence[Run]) -> None:
    """The comparison's runs, and the pages of the run in view."""
    size = int(one_of("Page", PAGE_SIZES, key="page_size"))
    rows = servability(runs)
    own = next(row for row, one in zip(rows, runs, strict=True) if one is run)
    table = run_pages.freed_by_run(rows, size)
    page.verdict(serving.verdict(table, own.title))
    st.markdown(plain(f"{own.title} is level {own.level} ({own.held.why}): an engine must hold {LEVELS[own.level]}."))
    figure = serving.freed_by_run(table, page_theme())
    caption = serving.caption_freed_by_run(table)
    source = join_sources(of_comparison(runs), page.source(runs[-1]))
    show(figure, table, caption, "serving-freed", "freed-pages", source)
    pages_of(run, size)


@st.fragment
def pages_of(run: Run, size: int) -> None:
    """Which pages of the run stay, and over the steps."""
    step = view.run_scrubber(run)
    left, right = st.columns(2, gap="large")
    with left:
        table = run_pages.pages_map(wall(run), size, step)
        figure = serving.pages_map(table, size, page_theme())
        caption = serving.caption_pages_map(table)
        page.show_figure(run, figure, table, caption, "serving-map", f"pages-step-{step}")
    with right:
        table = pages_over_steps(run, size)
        figure = along_text(serving.pages_over_steps(table, size, page_theme()), offset=run.record.prompt_tokens - 1)
        page.show_figure(
            run, figure, table, serving.caption_pages_over_steps(table), "serving-steps", "pages-over-steps"
        )


@st.cache_resource(max_entries=8, hash_funcs=BY_STAMP, show_spinner=False)
def wall(run: Run) -> Wall:
    return wall_of(run)


@st.cache_data(max_entries=8, hash_funcs=BY_STAMP, show_spinner="Reading the events of every run")
def servability(runs: Sequence[Run]) -> list[Servability]:
    return [run_pages.run_servability(run, wall(run)) for run in runs]


@st.cache_data(max_entries=16, hash_funcs=BY_STAMP, show_spinner=False)
def pages_over_steps(run: Run, size: int) -> pd.DataFrame:
    return run_pages.pages_over_steps(wall(run), size)


def every_method() -> None:
    st.header("All methods")
    levels = " · ".join(f"**{level}** {words}" for level, words in enumerate(LEVELS))
    st.markdown(f"Measured on mini with a text of 384 tokens at 20 %. An engine must hold, at level {levels}.")
    table = run_pages.servability_table(read_csv())
    show_table(table, "Servability of all methods", "kvlab serve-check --all")
    csv_button(table, "servability")


main()
