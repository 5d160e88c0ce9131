"""Head fingerprints: four features of each head, and groups of similar heads."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.base.theme import theme as page_theme
from app.figures.tables import show_table
from app.navigation.place import head_in_view, recorded_layers
from app.navigation.selection import current_run
from app.run_views import page
from app.session.open_runs import BY_STAMP
from app.session.url_state import in_url
from kvlab.analysis.attention import fingerprints
from kvlab.figures import heads as figures
from kvlab.figures.memory import caption_slots_by_head, slots_by_head
from kvlab.trace.reader import Run
from kvlab.views.frames.memory import budgets_by_layer

MAX_VECTORS = 4_000_000  # tokens x layers x heads that are read without a switch


def main() -> None:
    page.heading(
        "Head fingerprints",
        "Four features of each head: **sink** (true attention on the first 4 tokens), **local** (on the last 32), "
        "**key likeness** (cosine of neighbouring keys: how well they merge) and **regret**. Nearby points are similar "
        "heads. The first figure shows where the memory is: the slots of each head after the prompt.",
    )
    run = current_run("budgets")
    if run is None:
        return
    page.explain_status(run)
    slots_of_heads(run)
    if run.record.level != "full":
        page.explain_level(run, "keys and attention rows")
        return
    layers = recorded_layers(run)
    label = f"Read keys and attention of {len(layers)} layers (takes some seconds)"
    if not page.reads_all(run, layers, MAX_VECTORS, label):
        return
    table = fingerprints_of(run, tuple(layers))
    if table.empty:
        missing = "The keys and attention rows of every layer are missing or damaged: record the run again to see them."
        st.info(run.record.thinned_note if run.record.thinned else missing, icon=":material/info:")
        return
    groups_of(run, table)


def slots_of_heads(run: Run) -> None:
    """The slots of each layer and head after the prompt."""
    steps = run.select("steps")
    if steps.empty:
        return
    table = budgets_by_layer(steps, 0)
    focus = head_in_view(run)
    figure = slots_by_head(table, page_theme(), focus, "after the prompt")
    caption = caption_slots_by_head(table)
    page.show_figure(run, figure, table, caption, "heads-slots", "slots-by-head", focus)


def groups_of(run: Run, table: pd.DataFrame) -> None:
    most = min(8, len(table))
    count = most if most < 3 else st.slider("Groups", 2, most, min(4, most), **in_url("groups"))
    table = table.assign(group=fingerprints.cluster(table, count))
    groups = fingerprints.describe(table.drop(columns="group"), table["group"].to_numpy())
    theme = page_theme()
    left, right = page.map_columns(run, (3, 2))
    with left:
        places, directions, shares = fingerprints.plane(table)
        figure = figures.heads_plane(table, places, directions, shares, groups["name"].tolist(), theme)
        page.show_figure(run, figure, table, figures.caption_heads_plane(table, groups), "heads-plane", "fingerprints")
    with right:
        focus = head_in_view(run)
        figure = figures.groups_by_head(table, theme, focus)
        caption = figures.caption_groups_by_head(table)
        page.show_figure(run, figure, table, caption, "heads-where", "groups-by-head", focus)
    shown = groups.assign(group=groups["group"] + 1).rename(columns={"alike": "key likeness"})
    shown = shown[["group", "heads", "sink", "local", "key likeness", "regret"]]
    show_table(shown, "One row per group: means of the four features")


@st.cache_data(max_entries=8, hash_funcs=BY_STAMP, show_spinner="Reading every head")
def fingerprints_of(run: Run, layers: tuple[int, ...]) -> pd.DataFrame:
    return fingerprints.fingerprints(run, list(layers))


main()
