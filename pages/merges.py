"""Lost by merging: what left the cache and how, what merged slots get of the attention, and the runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from app.base.lazy_views import after_first_chart
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.base.widgets import one_of
from app.figures.figure import show
from app.navigation.place import head_in_view
from app.run_views import page, view
from app.run_views.require_level import run_with_steps
from app.session.open_runs import BY_STAMP
from kvlab.trace.reader import Run
from kvlab.views import merges, sag
from kvlab.views.base.head_map import Place
from kvlab.views.base.provenance import of_comparison


def main() -> None:
    page.heading(
        "Lost by merging",
        "What each run's cache loses of the attention that it would have with nothing dropped: by dropping tokens "
        "(**regret**), and by merging them into common slots (**sag**). A smaller output error is better.",
    )
    found = run_with_steps("merging")
    if found is None:
        return
    run, runs = found
    beside = by_run(runs)
    if one_of("Show", ["all heads", "one head"], key="scope") == "one head":
        view.at_place(run, partial(show_head, run, runs, beside), steps=False)
    else:
        show_head(run, runs, beside, None, None)


@st.cache_data(max_entries=16, hash_funcs=BY_STAMP, show_spinner="Reading the steps of every run")
def by_run(runs: tuple[Run, ...]) -> pd.DataFrame:
    return sag.attention_by_run_frame(runs)


def show_head(run: Run, runs: Sequence[Run], beside: pd.DataFrame, layer: int | None, head: int | None) -> None:
    """One layer and head, or all of them with None."""
    steps = run.steps if layer is None else run.select("steps", layer, head)
    total = sag.totals(steps)
    where = run.record.label if layer is None else f"{run.record.label} in layer {layer}, head {head}"
    place = sag.place_among(beside, run.record.run_id) if layer is None else ""
    page.verdict(f"{sag.verdict(total, where)} {place}")
    explain_nothing(run, total)
    if layer is None and len(beside) > 1:
        figure = sag.attention_by_run(beside, page_theme())
        caption = sag.caption_attention_by_run(beside)
        show(figure, beside, caption, "merges-runs", "attention-by-run", of_comparison(runs))
    what_left(run, steps, layer, head)
    after_first_chart(f"merges-{run.record.run_id}", the_rest, run, steps, layer, head)


def the_rest(run: Run, steps: pd.DataFrame, layer: int | None, head: int | None) -> None:
    if run.record.level == "full" and steps["merged"].any():
        merged_groups(run, steps, layer, head)
    if sag.has_shadow(steps):
        st.header("Over the steps")
        table = sag.over_steps(steps)
        figures = [
            ("mass", sag.mass_over_steps, sag.caption_mass_over_steps),
            ("error", sag.errors_over_steps, sag.caption_errors_over_steps),
        ]
        if table["merged_true_mass"].fillna(0).any():
            figures.append(("sag", sag.sag_over_steps, sag.caption_sag_over_steps))
        if table["guard_activations"].any():
            figures.append(("guard", sag.guard_over_steps, sag.caption_guard_over_steps))
        columns = st.columns(2, gap="large")
        for place, (name, draw, caption) in enumerate(figures):
            with columns[place % 2]:
                picture(run, draw, caption, table, name, name)
        if steps[["layer", "head"]].drop_duplicates().shape[0] > 1:
            where(run, steps)
    else:
        page.explain_level(run, "single events, and the attention with nothing dropped behind sag and regret")


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
    left, right = page.map_columns(run)
    with left:
        picture(run, merges.events_over_steps, merges.caption_events_over_steps, counts, "steps", "events")
    if recorded and layer is None and steps["merged"].any():
        with right:
            focus = head_in_view(run)
            draw = partial(merges.events_by_head, focus=focus)
            table = table_of(run, layer, head, "by_head")
            picture(run, draw, merges.caption_events_by_head, table, "heads", "merged-share", focus)


def merged_groups(run: Run, steps: pd.DataFrame, layer: int | None, head: int | None) -> None:
    st.header("Merges and votes")
    votes = table_of(run, layer, head, "votes")
    balance = table_of(run, layer, head, "balance")
    st.markdown(plain(merges.count_sentence(steps["merged"].sum(), len(balance), int(votes["slots"].sum()))))
    left, right = st.columns(2, gap="large")
    with left:
        if len(alike := table_of(run, layer, head, "alike")):
            caption = merges.caption_similarity_distribution
            picture(run, merges.similarity_distribution, caption, alike, "alike", "merge-similarity")
    with right:
        picture(run, merges.votes_distribution, merges.caption_votes_distribution, votes, "votes", "votes")
    if len(balance):
        picture(run, merges.mass_balance, merges.caption_mass_balance, balance, "balance", "mass-balance")


def picture(
    run: Run,
    draw: Callable[..., Any],
    caption: Callable[[pd.DataFrame], str],
    table: pd.DataFrame,
    key: str,
    name: str,
    focus: Place | None = None,
) -> None:
    page.show_figure(run, draw(table, page_theme()), table, caption(table), f"merges-{key}", name, focus)


PLACE = ("layer", "head")
# Each table with the columns of the events that it needs.
TABLES: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], tuple[str, ...]]] = {
    "counts": (merges.events_over_steps_frame, ("step", "kind")),
    "by_head": (merges.events_by_head_frame, (*PLACE, "kind")),
    "alike": (merges.similarity_distribution_frame, ("target", "similarity", "kind")),
    "votes": (merges.votes_distribution_frame, ("step", *PLACE, "source", "target", "votes_after")),
    "balance": (
        merges.mass_balance_frame,
        ("step", *PLACE, "source", "target", "mass_source", "mass_target", "mass_after", "sag", "votes_after"),
    ),
}


@st.cache_data(max_entries=128, hash_funcs=BY_STAMP, show_spinner=False)
def table_of(run: Run, layer: int | None, head: int | None, name: str) -> pd.DataFrame:
    """One of `TABLES`, cached as it is much smaller than the events of a long run."""
    make, columns = TABLES[name]
    return make(run.select("events", layer, head, columns, ordered=name in ("votes", "balance")))


def where(run: Run, steps: pd.DataFrame) -> None:
    st.header("Where it happened")
    names = {
        "sag": "sag",
        "regret": "regret",
        "output_error": "output error",
        "guard_activations": "guard activations",
        "max_votes": "largest votes",
    }
    measure = one_of("Measure", names, "output_error", key="measure")
    table = sag.by_head(steps)
    focus = head_in_view(run)
    figure = sag.measure_by_head(table, measure, page_theme(), focus)
    caption = sag.caption_measure_by_head(table, measure)
    page.show_figure(run, figure, table, caption, "merges-where", f"{measure}-by-head", focus)


main()
