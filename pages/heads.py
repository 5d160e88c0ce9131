"""Heads: four features of each head, and which kinds of heads lose most attention."""

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
from kvlab.trace.reader import Run
from kvlab.views import heads
from kvlab.views.frames.memory import budgets_by_layer
from kvlab.views.memory import caption_slots_by_head, slots_by_head

MAX_VECTORS = 4_000_000  # tokens x layers x heads that are read without a switch


def main() -> None:
    page.heading(
        "Heads",
        "Which kinds of heads lose most attention to dropped tokens, by four features: **sink** (attention on the "
        "first 4 tokens), **local** (on the last 32), **key likeness** (cosine of neighbouring keys) and **regret**, "
        "of which less is better.",
    )
    run = current_run("budgets")
    if run is None:
        return
    page.explain_status(run)
    groups_of_heads(run)
    # The slots of each layer and head after the prompt.
    steps = run.select("steps")
    if steps.empty:
        return
    table = budgets_by_layer(steps, 0)
    focus = head_in_view(run)
    figure = slots_by_head(table, page_theme(), focus, "after the prompt")
    caption = caption_slots_by_head(table)
    page.show_figure(run, figure, table, caption, "heads-slots", "slots-by-head", focus)


def groups_of_heads(run: Run) -> None:
    """The heads by their features, with a sentence if the run did not record them."""
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


def groups_of(run: Run, table: pd.DataFrame) -> None:
    most = min(8, len(table))
    count = most if most < 3 else st.slider("Groups", 2, most, min(4, most), **in_url("groups"))
    table = table.assign(group=heads.cluster(table, count))
    groups = heads.describe(table.drop(columns="group"), table["group"].to_numpy())
    page.verdict(heads.verdict(groups, run.record.label))
    theme = page_theme()
    left, right = page.map_columns(run, (3, 2))
    with left:
        places, directions, shares = heads.plane(table)
        figure = heads.heads_plane(table, places, directions, shares, groups["name"].tolist(), theme)
        page.show_figure(run, figure, table, heads.caption_heads_plane(table, groups), "heads-plane", "fingerprints")
    with right:
        focus = head_in_view(run)
        figure = heads.groups_by_head(table, theme, focus)
        caption = heads.caption_groups_by_head(table)
        page.show_figure(run, figure, table, caption, "heads-where", "groups-by-head", focus)
    shown = groups.assign(group=groups["group"] + 1).rename(columns={"alike": "key likeness"})
    shown = shown[["group", "heads", "sink", "local", "key likeness", "regret"]]
    show_table(shown, "One row per group: means of the four features")


@st.cache_data(max_entries=8, hash_funcs=BY_STAMP, show_spinner="Reading every head")
def fingerprints_of(run: Run, layers: tuple[int, ...]) -> pd.DataFrame:
    return heads.fingerprints(run, list(layers))


main()
