"""Regret and budget: where dropped tokens are missed, which ones, and whether the budget is where the loss is."""

from __future__ import annotations

from functools import partial

import pandas as pd
import streamlit as st

from app.base.deferred import after_the_first_picture
from app.base.theme import theme as page_theme
from app.components.tokentext import along_text
from app.figures.figure import show
from app.figures.tables import show_table
from app.run_views import page, view
from app.run_views.require_level import run_with_steps
from app.session.url_state import go_there
from kvlab.analysis.attention import regret, sag
from kvlab.figures import memory as memory_figures
from kvlab.figures import regret as figures
from kvlab.figures import sag as sag_figures
from kvlab.figures.base.words import percent, plural
from kvlab.trace.reader import Run


def main() -> None:
    page.heading(
        "Regret and budget",
        "**Regret** is the share of the full cache's attention that would go to tokens already dropped. The map shows "
        "in which layers and at which steps it is, and the budgets beside it whether slots are where the loss is.",
    )
    run = run_with_steps()
    if run is None:
        return
    if not sag.has_shadow(run.steps):
        page.explain_level(run, "the comparison with the full cache's attention behind regret")
        budgets(run)
        return
    view.at_place(run, partial(missed, run))
    after_the_first_picture(f"regret-{run.record.run_id}", budgets, run)


@st.fragment
def missed(run: Run, layer: int, head: int) -> None:
    table = regret.regret_over_steps(run.steps, run.tokens)
    step = view.run_scrubber(run)
    theme, origin, offset = page_theme(), page.source(run), run.record.prompt_tokens - 1
    left, right = st.columns(2, gap="large")
    with left:
        picture = regret.regret_map(run.steps)
        figure = along_text(figures.regret_map(picture, step, theme), offset=offset)
        show(figure, picture, figures.read_regret_map(picture), "regret-map", page.file_name(run, "regret-map"), origin)
    with right:
        figure = along_text(figures.regret_over_steps(table, theme), offset=offset)
        name = page.file_name(run, "regret-steps")
        show(figure, table, figures.read_regret_over_steps(table), "regret-steps", name, origin)
    dropped(run, layer, head, step)
    worst_head(run, step, (layer, head))


def dropped(run: Run, layer: int, head: int, step: int) -> None:
    st.subheader(f"What layer {layer}, head {head} misses at step {step}")
    masses = page.masses_at(run, layer, head, step)
    if run.record.level != "full":
        page.explain_level(run, "attention rows, so the tokens cannot be named")
        return
    if masses is None:
        page.explain_no_masses(run, layer, head, step)
        return
    lineage, _, texts = page.head_history(run, layer, head)
    table = regret.dropped_tokens(lineage, masses[0], texts, step)
    words, listed = st.columns(2, gap="large")
    with words:
        view.head_text(run, layer, head, step, "regret-text")
    with listed:
        if table.empty:
            st.caption("No token of this head has been dropped by then.")
            return
        count = plural(len(table), "dropped token")
        st.caption(f"{count}, those first that the full cache would attend to most at this step")
        show_table(table, "Dropped tokens by the attention they would get", height=380)


def worst_head(run: Run, step: int, here: tuple[int, int]) -> None:
    layer, head, share = regret.worst_head(run.steps, step)
    if (layer, head) == here:
        st.caption(f"This is the head that misses most at step {step}: {percent(share)}.")
        return
    st.button(
        f"Go to layer {layer}, head {head}, which misses most at step {step} ({percent(share)})",
        on_click=go_there,
        kwargs={"layer": layer, "head": head},
        key="worst-head",
    )


def budgets(run: Run) -> None:
    st.subheader("Budget beside regret")
    table, theme, origin = regret.budget_and_regret(run.steps), page_theme(), page.source(run)
    left, right = st.columns(2, gap="large")
    with left:
        figure, reading = memory_figures.budget_anatomy(table, theme), memory_figures.read_budget_anatomy(table)
        show(figure, table, reading, "regret-budget", page.file_name(run, "slots-by-head"), origin)
    if not table["regret"].notna().any():
        return
    with right:
        figure, reading = beside(table, "regret")
        show(figure, table, reading, "regret-heads", page.file_name(run, "regret-by-head"), origin)
    if table["live_slots"].nunique() < 2:
        st.caption("All heads hold the same number of slots, so slots cannot follow the loss.")
        return
    correlation = regret.rank_correlation(table["live_slots"], table["regret"])
    figure = figures.budget_against_regret(table, theme)
    reading = figures.read_budget_against_regret(table, correlation)
    show(figure, table, reading, "regret-scatter", page.file_name(run, "budget-against-regret"), origin)


def beside(table: pd.DataFrame, measure: str) -> tuple:
    """The heat map of one measure, and its reading."""
    return sag_figures.measure_by_head(table, measure, page_theme()), sag_figures.read_measure_by_head(table, measure)


main()
