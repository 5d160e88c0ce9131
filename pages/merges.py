"""Merges, votes and sag: which slots were evicted or merged, and the effect on attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from app.base.lazy_views import after_first_chart
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.base.widgets import one_of
from app.navigation.place import head_in_view
from app.run_views import page, view
from app.run_views.require_level import run_with_steps
from app.session.open_runs import BY_STAMP
from kvlab.analysis.attention import sag
from kvlab.analysis.lineage import merges
from kvlab.figures import merges as merge_figures
from kvlab.figures import sag as sag_figures
from kvlab.trace.reader import Run
from kvlab.views.base.head_map import Place
from kvlab.views.base.words import percent


def main() -> None:
    page.heading(
        "Merges, votes and sag",
        "Which slots were evicted or merged, how many tokens each slot represents (votes), and the effect on "
        "attention: **sag** is the attention that a merge loses, **regret** the attention that dropped tokens would "
        "still get.",
    )
    run = run_with_steps("merging")
    if run is None:
        return
    if one_of("Show", ["all heads", "one head"], key="scope") == "one head":
        view.at_place(run, partial(show_head, run), steps=False)
    else:
        show_head(run, None, None)


def show_head(run: Run, layer: int | None, head: int | None) -> None:
    """One layer and head, or all of them with None."""
    steps = run.steps if layer is None else run.select("steps", layer, head)
    facts(run, steps)
    what_left(run, steps, layer, head)
    after_first_chart(f"merges-{run.record.run_id}", the_rest, run, steps, layer, head)


def the_rest(run: Run, steps: pd.DataFrame, layer: int | None, head: int | None) -> None:
    if run.record.level == "full" and steps["merged"].any():
        merged_groups(run, layer, head)
    if sag.has_shadow(steps):
        what_it_did(run, steps)
    else:
        page.explain_level(run, "single events, and the attention with nothing dropped behind sag and regret")


def facts(run: Run, steps: pd.DataFrame) -> None:
    total = sag.totals(steps)
    values = [
        ("Slots merged", f"{total['merged']:,.0f}", "Merged and pooled slots, over the layers and heads shown."),
        ("Slots evicted", f"{total['evicted']:,.0f}", "Slots dropped with their content."),
        ("Mean sag", percent(total["sag"]), "Attention that merged tokens lose; below 0 they gain."),
        ("Mean regret", percent(total["regret"]), "Attention, with nothing dropped, on dropped tokens."),
        ("Mean output error", percent(total["output_error"]), "Distance from the output with nothing dropped."),
    ]
    if guarded := total["guard_activations"]:  # most methods have no safeguard
        values.insert(2, ("Guard activations", f"{guarded:,.0f}", "How often the method's safeguard intervened."))
    page.metrics(values)
    explain_nothing(run, total)


def explain_nothing(run: Run, total: dict[str, float]) -> None:
    """One sentence if nothing was merged, or nothing was evicted either."""
    if total["merged"] or total["evicted"]:
        if not total["merged"]:
            st.info(
                f"**{plain(run.record.method)}** merged nothing here, it only evicted. So there are no votes and no "
                "sag; what it loses is regret.",
                icon=":material/info:",
            )
        return
    reason = "the full cache keeps every token" if run.record.method == "full" else "the budget was never exceeded"
    st.info(f"Nothing was evicted or merged in the layers and heads shown: {reason}.", icon=":material/info:")


def what_left(run: Run, steps: pd.DataFrame, layer: int | None, head: int | None) -> None:
    recorded = run.record.level == "full"
    counts = table_of(run, layer, head, "counts") if recorded else merges.departures_from_steps(steps)
    if counts.empty:
        return
    st.header("Evicted and merged slots")
    merged = recorded and bool(steps["merged"].sum())
    left, right = page.map_columns(run)
    with left:
        picture(
            run, merge_figures.events_over_steps, merge_figures.caption_events_over_steps, counts, "steps", "events"
        )
    with right:
        if layer is None and merged:
            focus = head_in_view(run)
            draw = partial(merge_figures.events_by_head, focus=focus)
            table = table_of(run, layer, head, "by_head")
            picture(run, draw, merge_figures.caption_events_by_head, table, "heads", "merged-share", focus)


def merged_groups(run: Run, layer: int | None, head: int | None) -> None:
    st.header("Merges and votes")
    left, right = st.columns(2, gap="large")
    with left:
        if len(table := table_of(run, layer, head, "alike")):
            draw = merge_figures.similarity_distribution
            read = merge_figures.caption_similarity_distribution
            picture(run, draw, read, table, "alike", "merge-similarity")
    with right:
        draw = merge_figures.votes_distribution
        read = merge_figures.caption_votes_distribution
        picture(run, draw, read, table_of(run, layer, head, "votes"), "votes", "votes")
    if len(table := table_of(run, layer, head, "balance")):
        picture(run, merge_figures.mass_balance, merge_figures.caption_mass_balance, table, "balance", "mass-balance")


def picture(
    run: Run,
    draw: Callable[..., Any],
    read: Callable[[pd.DataFrame], str],
    table: pd.DataFrame,
    key: str,
    name: str,
    focus: Place | None = None,
) -> None:
    figure = draw(table, page_theme())
    page.show_figure(run, figure, table, read(table), f"merges-{key}", name, focus)


PLACE = ("layer", "head")
# Each table with the columns of the events that it needs.
TABLES: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], tuple[str, ...]]] = {
    "counts": (merges.events_over_steps, ("step", "kind")),
    "by_head": (merges.events_by_head, (*PLACE, "kind")),
    "alike": (merges.similarity_distribution, ("target", "similarity", "kind")),
    "votes": (
        lambda events: merges.votes_distribution(merges.final_votes(events)),
        ("step", *PLACE, "source", "target", "votes_after"),
    ),
    "balance": (
        merges.mass_balance,
        ("step", *PLACE, "source", "target", "mass_source", "mass_target", "mass_after", "sag", "votes_after"),
    ),
}


@st.cache_data(max_entries=128, hash_funcs=BY_STAMP, show_spinner=False)
def table_of(run: Run, layer: int | None, head: int | None, name: str) -> pd.DataFrame:
    """One of `TABLES`, cached as it is much smaller than the events of a long run."""
    make, columns = TABLES[name]
    return make(run.select("events", layer, head, columns, ordered=name in ("votes", "balance")))


def what_it_did(run: Run, steps: pd.DataFrame) -> None:
    st.header("Effect on attention")
    table = sag.over_steps(steps)
    theme = page_theme()
    figures = [
        ("mass", sag_figures.mass_over_steps, sag_figures.caption_mass_over_steps),
        ("error", sag_figures.errors_over_steps, sag_figures.caption_errors_over_steps),
    ]
    if table["merged_true_mass"].fillna(0).any():
        figures.append(("sag", sag_figures.sag_over_steps, sag_figures.caption_sag_over_steps))
    if table["guard_activations"].any():
        figures.append(("guard", sag_figures.guard_over_steps, sag_figures.caption_guard_over_steps))
    columns = st.columns(2, gap="large")
    for place, (name, draw, read) in enumerate(figures):
        with columns[place % 2]:
            page.show_figure(run, draw(table, theme), table, read(table), f"merges-{name}", name)
    if steps[["layer", "head"]].drop_duplicates().shape[0] > 1:
        where(run, steps)


def where(run: Run, steps: pd.DataFrame) -> None:
    st.header("Where it happened")
    table = sag.by_head(steps)
    names = {
        "sag": "sag",
        "regret": "regret",
        "output_error": "output error",
        "guard_activations": "guard activations",
        "max_votes": "largest votes",
    }
    measure = one_of("Measure", names, "output_error", key="measure")
    focus = head_in_view(run)
    figure = sag_figures.measure_by_head(table, measure, page_theme(), focus)
    caption = sag_figures.caption_measure_by_head(table, measure)
    page.show_figure(run, figure, table, caption, "merges-where", f"{measure}-by-head", focus)


main()
