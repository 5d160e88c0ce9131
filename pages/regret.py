"""Lost by dropping: where dropped tokens are missed, which ones, and whether slots are where the loss is."""

from __future__ import annotations

from functools import partial

import streamlit as st

from app.base.lazy_views import after_first_chart
from app.base.theme import theme as page_theme
from app.components.tokentext import along_text
from app.figures.tables import show_table
from app.navigation.place import head_in_view
from app.run_views import page, view
from app.run_views.require_level import run_with_steps
from app.session.url_state import go_to_and_redraw
from kvlab.trace.reader import Run
from kvlab.views import memory, regret, sag
from kvlab.views.base.head_map import Place
from kvlab.views.base.words import percent, plural


def main() -> None:
    page.heading(
        "Lost by dropping",
        "**Regret** is the share of a step's attention that would go to tokens already dropped, had nothing been "
        "dropped: of this run's own query, not of the full cache's run. Less is better.",
    )
    found = run_with_steps("budgets")
    if found is None:
        return
    run, _ = found
    page.verdict(
        regret.verdict(
            regret.regret_over_steps_frame(run.steps, run.tokens),
            regret.budget_and_regret(run.steps),
            run.record.label,
        )
    )
    if not sag.has_shadow(run.steps):
        page.explain_level(run, "the attention with nothing dropped behind regret")
        budgets(run, head_in_view(run))
        return
    view.at_place(run, partial(show_head, run))


def show_head(run: Run, layer: int, head: int) -> None:
    show_missed_mass(run, layer, head)
    after_first_chart(f"regret-{run.record.run_id}", budgets, run, (layer, head))


@st.fragment
def show_missed_mass(run: Run, layer: int, head: int) -> None:
    table = regret.regret_over_steps_frame(run.steps, run.tokens)
    step = view.run_scrubber(run)
    theme = page_theme()
    offset = run.record.prompt_tokens - 1
    left, right = st.columns(2, gap="large")
    with left:
        picture = regret.regret_map_frame(run.steps)
        figure = along_text(regret.regret_map(picture, step, theme), offset=offset)
        page.show_figure(run, figure, picture, regret.caption_regret_map(picture), "regret-map", "regret-map")
    with right:
        figure = along_text(regret.regret_over_steps(table, theme), offset=offset)
        page.show_figure(run, figure, table, regret.caption_regret_over_steps(table), "regret-steps", "regret-steps")
    show_dropped_tokens(run, layer, head, step)
    worst_head(run, step, (layer, head))


def show_dropped_tokens(run: Run, layer: int, head: int, step: int) -> None:
    st.header(f"Dropped tokens that layer {layer}, head {head} misses at step {step}")
    masses = page.masses_at(run, layer, head, step)
    if run.record.level != "full":
        page.explain_level(run, "attention rows, so the tokens are unknown")
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
            st.caption("This head has not dropped any token by this step.")
            return
        count = plural(len(table), "dropped token")
        st.caption(f"{count}, by the attention that this step would give them with nothing dropped")
        show_table(table, "Dropped tokens by the attention they would get", height=380)


def worst_head(run: Run, step: int, here: tuple[int, int]) -> None:
    layer, head, share = regret.worst_head(run.steps, step)
    if (layer, head) == here:
        st.caption(f"This head misses the most at step {step}: {percent(share)}.")
        return
    st.button(
        f"Go to layer {layer}, head {head}, which misses the most at step {step} ({percent(share)})",
        on_click=go_to_and_redraw,
        kwargs={"layer": layer, "head": head},
        key="worst-head",
    )


def budgets(run: Run, focus: Place) -> None:
    st.header("Budget and regret")
    table = regret.budget_and_regret(run.steps)
    theme = page_theme()
    left, right = page.map_columns(run)
    with left:
        figure = memory.slots_by_head(table, theme, focus)
        caption = memory.caption_slots_by_head(table)
        page.show_figure(run, figure, table, caption, "regret-budget", "slots-by-head", focus)
    if not table["regret"].notna().any():
        return
    with right:
        figure = sag.measure_by_head(table, "regret", theme, focus)
        caption = sag.caption_measure_by_head(table, "regret")
        page.show_figure(run, figure, table, caption, "regret-heads", "regret-by-head", focus)
    if table["live_slots"].nunique() < 2:
        st.caption("All heads have the same number of slots, so there is nothing to compare their losses with.")
        return
    correlation = regret.rank_correlation(table["live_slots"], table["regret"])
    figure = regret.budget_against_regret(table, theme)
    caption = regret.caption_budget_against_regret(table, correlation)
    page.show_figure(run, figure, table, caption, "regret-scatter", "budget-against-regret")


main()
