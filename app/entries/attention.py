"""Attention: what a cache loses of it by merging and by dropping, KeepKV's bound of the loss, and kinds of heads."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from app.base.component import after_first_chart, flush
from app.base.text import plain
from app.base.widgets import one_of
from app.figures.figure import frame_of, in_pairs, show_view
from app.figures.tables import show_table
from app.navigation import page
from app.navigation.place import head_in_view
from app.navigation.selection import current_comparison, current_run
from app.session.open_runs import BY_STAMP
from app.session.url_state import go_to_and_redraw, in_url
from app.similarity import MAP_KEYS, similarity_of_head
from kvlab.trace.reader import Run
from kvlab.views import bound, heads, merges, regret, sag
from kvlab.views.base.head_map import Place
from kvlab.views.base.view import VIEWS, Subject, View, find_view
from kvlab.views.base.words import number, percent, plural
from kvlab.views.frames.head_states import recorded_layers


def merges_page() -> None:
    page.heading(
        "Lost by merging",
        "What each run's cache loses of the attention that it would have with nothing dropped: by dropping tokens "
        "(**regret**), and by merging them into common slots (**sag**). A smaller output error is better.",
    )
    found = page.run_with_steps("merging")
    if found is None:
        return
    run, runs = found
    beside = frame_of("attention_by_run", runs)
    if one_of("Show", ["all heads", "one head"], key="scope") == "one head":
        page.at_place(run, partial(show_head, run, runs, beside), steps=False)
    else:
        show_head(run, runs, beside, None, None)


def show_head(run: Run, runs: Sequence[Run], beside: pd.DataFrame, layer: int | None, head: int | None) -> None:
    """One layer and head, or all of them with None."""
    steps = run.steps if layer is None else run.select("steps", layer, head)
    total = sag.totals(steps)
    where = run.record.label if layer is None else f"{run.record.label} in layer {layer}, head {head}"
    place = sag.place_among(beside, run.record.run_id) if layer is None else ""
    page.verdict(f"{sag.verdict(total, where)} {place}")
    if not total["merged"] and not total["evicted"]:
        reason = "the full cache keeps every token" if run.record.method == "full" else "the budget was never exceeded"
        st.info(f"Nothing was evicted or merged in the layers and heads shown: {reason}.", icon=":material/info:")
    elif not total["merged"]:
        st.info(
            f"**{plain(run.record.method)}** merged nothing here, it only evicted. So there are no votes and no "
            "sag; what it loses is regret.",
            icon=":material/info:",
        )
    if layer is None and len(beside) > 1:
        show_view("attention_by_run", runs, "merges-runs")
    if not frame_of("events", run, layer=layer, head=head).empty:
        st.header("Evicted and merged slots")
        if run.record.level == "full" and layer is None and steps["merged"].any():
            left, right = page.map_columns(run)
            with left:
                show_view("events", run, "merges-steps", layer=layer, head=head)
            with right:
                show_view("merged_share", run, "merges-heads", focus=head_in_view(run))
        else:
            show_view("events", run, "merges-steps", layer=layer, head=head)
    after_first_chart(f"merges-{run.record.run_id}", the_rest, run, steps, layer, head)


def the_rest(run: Run, steps: pd.DataFrame, layer: int | None, head: int | None) -> None:
    if run.record.level == "full" and steps["merged"].any():
        st.header("Merges and votes")
        place = {"layer": layer, "head": head}
        votes = frame_of("votes", run, **place)
        balance = frame_of("mass_balance", run, **place)
        st.markdown(plain(merges.count_sentence(steps["merged"].sum(), len(balance), int(votes["slots"].sum()))))
        names = ["merge_similarity"] if len(frame_of("merge_similarity", run, **place)) else []
        names += ["votes", "mass_balance"] if len(balance) else ["votes"]
        in_pairs(*(partial(show_view, name, run, f"merges-{name}", layer=layer, head=head) for name in names))
    if sag.has_shadow(steps):
        st.header("Over the steps")
        names = ["mass", "output_error"]
        names += ["sag"] if steps["merged_true_mass"].fillna(0).any() else []
        names += ["guard"] if steps["guard_activations"].any() else []
        in_pairs(*(partial(show_view, name, run, f"merges-{name}", layer=layer, head=head) for name in names))
        if steps[["layer", "head"]].drop_duplicates().shape[0] > 1:
            st.header("Where it happened")
            measures = {
                "sag": "sag",
                "regret": "regret",
                "output_error": "output error",
                "guard_activations": "guard activations",
                "max_votes": "largest votes",
            }
            measure = one_of("Measure", measures, "output_error", key="measure")
            show_view("loss_by_head", run, "merges-where", measure=measure, focus=head_in_view(run))
    else:
        page.explain_level(run, "single events, and the attention with nothing dropped behind sag and regret")


MAX_VALUES = 2_000_000  # tokens x layers x heads whose values are read without a switch
typical_perturbation = st.cache_data(max_entries=64, hash_funcs=BY_STAMP, show_spinner=False)(
    bound.typical_perturbation
)
SCOPES = ("one head", "heads of the layer", "all heads")


def sag_page() -> None:
    page.heading(
        "Bound of the loss",
        "How each step changed one head's attention (**sag**) and output, beside the largest change that KeepKV's "
        "theorem allows a merge. A step above the bound lost more than the theorem covers.",
    )
    run = page.full_run("bound", "values, attention rows and the attention with nothing dropped")
    if run is None:
        return
    page.at_place(run, partial(show_bound, run))


def show_bound(run: Run, layer: int, head: int) -> None:
    scope = one_of("Show", SCOPES, key="scope", width="content")
    if scope == SCOPES[0]:
        table = frame_of("bound", run, layer=layer, head=head)
        page.verdict(bound.verdict(table, run.record.label, (layer, head)))
        bounded = float(table["bound"].notna().mean())
        values = [
            ("Steps with a bound", percent(bounded), "Steps in which epsilon is below 1, as the theorem requires."),
            ("Median epsilon", number(float(table["epsilon"].median())), "Relative error of the predicted scores."),
            (
                "Value spread gamma",
                number(float(table["gamma"].iloc[0])),
                "Largest distance of a merged value to any other.",
            ),
            (
                "Above the bound",
                f"{int((table['flag'] != '').sum())}",
                "Steps in which the output changed by more than the bound.",
            ),
        ]
        page.metrics(values)
        show_view("bound", run, "sag-bound", layer=layer, head=head)
        flush()
        how_it_is_computed(run)
        after_first_chart(f"sag-{run.record.run_id}", linked_text, run, layer, head)
    else:
        layers = [layer] if scope == SCOPES[1] else recorded_layers(run)
        label = f"Read the values of {len(layers)} layers ({{vectors:,}} vectors)"
        if not page.reads_all(run, layers, MAX_VALUES, label):
            return
        chosen = tuple(layers)
        with st.spinner("Reading values and attention of every head"):
            medians = frame_of("bound_medians", run, layers=chosen)
        if medians.empty:
            st.info("Nothing was recorded for these layers.", icon=":material/info:")
            return
        show_view("bound_medians", run, "sag-medians", layers=chosen)
        titles = {title: name for name, (title, _) in bound.MEASURES.items()}
        measure = titles[one_of("Measure", list(titles), key="measure")]
        show_view("bound_by_head", run, "sag-heads", layers=chosen, measure=measure, focus=(layer, head))
        how_it_is_computed(run)


@st.cache_data(max_entries=64, hash_funcs=BY_STAMP, show_spinner=False)
def predicts(run: Run) -> bool:
    return bound.predicts_scores(run.select("steps", columns=["score_error"]))


def how_it_is_computed(run: Run) -> None:
    predicted = "the error of this method's predicted scores (`score_error`)"
    other = "the error of predicting each slot's score of the step before, as this method predicts no scores"
    if run.record.method == "keepkv" and run.record.hyper_parameters.get("predict") == "ema":
        changed = typical_perturbation(run)
        effect = "" if changed is None else f"; a decision changes a head's output by {percent(changed)} at the median"
        st.caption(f"This run merges for predicted scores, which no query has exactly, so no merge is exact{effect}.")
    sharing = bound.query_heads_per_slot(run)
    of_groups = (
        f"\n- The theorem is about one query head. Here {sharing} share each slot, and no log mass is exact for all of "
        "them; a change above the bound is marked. KeepKV fits its merges to the group by least squares; "
        "`per_head_mass` stores a mass per query head."
    )
    with st.expander("How the bound is computed"):
        st.markdown(
            "- The bound is 2ε(1+ε)γ/(1-ε)², with ε the error of the predicted scores and γ the spread of the values.\n"
            f"- ε is {predicted if predicts(run) else other}: its mean over attention, while the theorem needs the "
            "largest over all slots. So the line is optimistic, and a step above it need not contradict the theorem.\n"
            "- γ is the largest distance between the value of a merged token and any other value of the head. It is "
            "undefined without merges.\n"
            "- The bound is divided by the norm of the true output, as the recorded changes are relative.\n"
            "- The theorem is about merging: if tokens were evicted too, a change above the bound is marked."
            + (of_groups if sharing > 1 else "")
        )


@st.fragment
def linked_text(run: Run, layer: int, head: int) -> None:
    st.header("The text at a step")
    step = page.run_scrubber(run)
    page.head_text(run, layer, head, step, "sag-text")


def regret_page() -> None:
    page.heading(
        "Lost by dropping",
        "**Regret** is the share of a step's attention that would go to tokens already dropped, had nothing been "
        "dropped: of this run's own query, not of the full cache's run. Less is better.",
    )
    found = page.run_with_steps("budgets")
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
        budget_and_regret(run, head_in_view(run))
        return
    page.at_place(run, partial(show_regret, run))


def show_regret(run: Run, layer: int, head: int) -> None:
    show_missed_mass(run, layer, head)
    after_first_chart(f"regret-{run.record.run_id}", budget_and_regret, run, (layer, head))


@st.fragment
def show_missed_mass(run: Run, layer: int, head: int) -> None:
    step = page.run_scrubber(run)
    left, right = st.columns(2, gap="large")
    with left:
        show_view("regret_map", run, "regret-map", step=step)
    with right:
        show_view("regret", run, "regret-steps")
    st.header(f"Dropped tokens that layer {layer}, head {head} misses at step {step}")
    masses = page.masses_at(run, layer, head, step)
    if run.record.level != "full":
        page.explain_level(run, "attention rows, so the tokens are unknown")
    elif masses is None:
        page.explain_no_masses(run, layer, head, step)
    else:
        lineage, _, texts = page.head_history(run, layer, head)
        table = regret.dropped_tokens(lineage, masses[0], texts, step)
        words, listed = st.columns(2, gap="large")
        with words:
            page.head_text(run, layer, head, step, "regret-text")
        with listed:
            if table.empty:
                st.caption("This head has not dropped any token by this step.")
            else:
                count = plural(len(table), "dropped token")
                st.caption(f"{count}, by the attention that this step would give them with nothing dropped")
                show_table(table, "Dropped tokens by the attention they would get", height=380)
    worst_layer, worst_head, share = regret.worst_head(run.steps, step)
    if (worst_layer, worst_head) == (layer, head):
        st.caption(f"This head misses the most at step {step}: {percent(share)}.")
    else:
        st.button(
            f"Go to layer {worst_layer}, head {worst_head}, which misses the most at step {step} ({percent(share)})",
            on_click=go_to_and_redraw,
            kwargs={"layer": worst_layer, "head": worst_head},
            key="worst-head",
        )


def budget_and_regret(run: Run, focus: Place) -> None:
    st.header("Budget and regret")
    table = regret.budget_and_regret(run.steps)
    left, right = page.map_columns(run)
    with left:
        show_view("slots_by_head", run, "regret-budget", focus=focus)
    if not table["regret"].notna().any():
        return
    with right:
        show_view("loss_by_head", run, "regret-heads", measure="regret", focus=focus)
    if table["live_slots"].nunique() < 2:
        st.caption("All heads have the same number of slots, so there is nothing to compare their losses with.")
        return
    show_view("budget_against_regret", run, "regret-scatter")


MAX_KEYS = 4_000_000  # tokens x layers x heads that are read without a switch


def heads_page() -> None:
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
    layers = recorded_layers(run)
    label = f"Read keys and attention of {len(layers)} layers (takes some seconds)"
    if run.record.level != "full":
        page.explain_level(run, "keys and attention rows")
    elif page.reads_all(run, layers, MAX_KEYS, label):
        with st.spinner("Reading keys and attention of every head"):
            known = len(heads.fingerprints(run, tuple(layers)))
        if known:
            # The heads by their features, in groups.
            most = min(8, known)
            count = most if most < 3 else st.slider("Groups", 2, most, min(4, most), **in_url("groups"))
            place: dict[str, Any] = {"layers": tuple(layers), "groups": count}
            table = frame_of("heads_plane", run, **place)
            groups = heads.describe(table, table["group"].to_numpy())
            page.verdict(heads.verdict(groups, run.record.label))
            left, right = page.map_columns(run, (3, 2))
            with left:
                show_view("heads_plane", run, "heads-plane", **place)
            with right:
                show_view("head_groups", run, "heads-where", focus=head_in_view(run), **place)
            shown = groups.assign(group=groups["group"] + 1).rename(columns={"alike": "key likeness"})
            shown = shown[["group", "heads", "sink", "local", "key likeness", "regret"]]
            show_table(shown, "One row per group: means of the four features")
        else:
            missing = (
                "The keys and attention rows of every layer are missing or damaged: record the run again to see them."
            )
            st.info(run.record.thinned_note if run.record.thinned else missing, icon=":material/info:")
    if not run.steps.empty:
        show_view("slots_by_head", run, "heads-slots", step=0, moment="after the prompt", focus=head_in_view(run))


def similarity_page() -> None:
    page.heading(
        "Similarity",
        "How well a head's tokens can be merged: the cosine of its cached keys (or values) for every pair of tokens. 1 "
        "is the same direction, 0 unrelated; a merge of similar tokens loses less.",
    )
    run = current_run()
    if run is None:
        return
    page.explain_status(run)
    if run.record.level != "full":
        page.explain_level(run, "keys and values")
        return
    page.at_place(run, partial(similarity_of_head, run), steps=False, more=MAP_KEYS)


def plugin_view_page(name: str) -> None:
    """A view that a plug-in registered."""
    view_of_plugin = find_view(name)
    page.heading(plain(view_of_plugin.title), view_of_plugin.description)
    st.caption(plain(f"From the plug-in {VIEWS.origin(name).name}."))
    subject = current_run() if view_of_plugin.kind == "run" else current_comparison()
    if not subject:
        return
    if isinstance(subject, list):
        draw_plugin_view(view_of_plugin, subject)
        return
    page.explain_status(subject)
    if {"layer", "head"} & set(view_of_plugin.place_names):
        page.at_place(subject, lambda layer, head: draw_plugin_view(view_of_plugin, subject, layer=layer, head=head))
    else:
        draw_plugin_view(view_of_plugin, subject)


def draw_plugin_view(view_of_plugin: View, subject: Subject, **place: Any) -> None:
    try:
        show_view(view_of_plugin.name, subject, f"view-{view_of_plugin.name}", **place)
    except Exception as error:  # an error of the plug-in's code
        message = (str(error).strip().splitlines() or ["no message"])[0]
        st.error(plain(f"The view {view_of_plugin.title} failed on this run: {type(error).__name__}: {message}"))
