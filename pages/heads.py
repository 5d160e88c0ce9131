"""Head fingerprints: what kind of head each one is, and which are alike."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.base.theme import theme as page_theme
from app.figures.figure import show
from app.figures.tables import show_table
from app.navigation.selection import current_run
from app.run_views import page
from kvlab.analysis.attention import fingerprints
from kvlab.analysis.comparison.memory import budgets_by_layer
from kvlab.figures import heads as figures
from kvlab.figures.memory import read_slots_by_head, slots_by_head
from kvlab.trace.reader import Run

MOST_WORK = 4_000_000  # tokens x layers x heads read without asking


def main() -> None:
    page.heading(
        "Head fingerprints",
        "Heads by four things: **sink** (true attention on the first 4 tokens), **local** (on the last 32), "
        "**key likeness** (cosine of neighbouring keys: how well they merge) and **regret**. Near points do alike. "
        "Above them, where the memory went: the slots of each head after the prompt.",
    )
    run = current_run()
    if run is None:
        return
    page.explain_status(run)
    slots_of_heads(run)
    if run.record.level != "full":
        page.explain_level(run, "keys and attention rows")
        return
    layers = [layer for layer in range(run.record.model.num_hidden_layers) if layer not in run.record.sliding_layers]
    work = run.record.prompt_tokens * len(layers) * run.record.model.num_key_value_heads
    if work > MOST_WORK and not st.toggle(
        f"Read keys and attention of {len(layers)} layers (some seconds)", key="read", bind="query-params"
    ):
        return
    table = fingerprints_of(run, *page.stamp(run), tuple(layers))
    if table.empty:
        missing = "The keys and attention rows of every layer are missing or damaged: record the run again to see them."
        st.info(run.record.thinned_note if run.record.thinned else missing, icon=":material/info:")
        return
    groups_of(run, table)


def slots_of_heads(run: Run) -> None:
    """Where the memory went: what the prompt left to each layer and head."""
    steps = run.select("steps")
    if steps.empty:
        return
    table = budgets_by_layer(steps, 0)
    figure, reading = slots_by_head(table, page_theme()), read_slots_by_head(table)
    show(figure, table, reading, "heads-slots", page.file_name(run, "slots-by-head"), page.source(run))


def groups_of(run: Run, table: pd.DataFrame) -> None:
    most = min(8, len(table))
    count = most if most < 3 else st.slider("Groups", 2, most, min(4, most), key="groups", bind="query-params")
    table = table.assign(group=fingerprints.cluster(table, count))
    groups = fingerprints.describe(table.drop(columns="group"), table["group"].to_numpy())
    origin, theme, name = page.source(run), page_theme(), page.file_name(run, "fingerprints")
    left, right = st.columns([3, 2], gap="large")
    with left:
        places, directions, shares = fingerprints.plane(table)
        figure = figures.heads_plane(table, places, directions, shares, groups["name"].tolist(), theme)
        show(figure, table, figures.read_heads_plane(table, groups), "heads-plane", name, origin)
    with right:
        figure, reading = figures.groups_by_head(table, theme), figures.read_groups_by_head(table)
        show(figure, table, reading, "heads-where", page.file_name(run, "groups-by-head"), origin)
    shown = groups.assign(group=groups["group"] + 1).rename(columns={"alike": "key likeness"})
    shown = shown[["group", "heads", "sink", "local", "key likeness", "regret"]]
    show_table(shown, "One row a group: means of the four features")


@st.cache_data(max_entries=8, show_spinner="Reading every head")
def fingerprints_of(_run: Run, path: str, written: int, layers: tuple[int, ...]) -> pd.DataFrame:
    return fingerprints.fingerprints(_run, list(layers))


main()
