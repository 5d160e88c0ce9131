"""Sag and bound: what each step did to attention and output, against KeepKV's bound, for any method."""

from __future__ import annotations

from functools import partial

import pandas as pd
import streamlit as st

from app.base.deferred import after_the_first_picture, let_it_out
from app.base.theme import theme as page_theme
from app.components.tokentext import along_text
from app.figures.figure import show
from app.run_views import page, view
from app.run_views.require_level import full_run
from kvlab.analysis.attention import bound
from kvlab.analysis.attention.bound import query_heads_per_slot
from kvlab.figures import bound as figures
from kvlab.figures.base.words import number, percent
from kvlab.trace.reader import Run

MOST_WORK = 2_000_000  # tokens x layers x heads whose values are read without asking
SCOPES = ("one head", "heads of the layer", "all heads")


def main() -> None:
    page.heading(
        "Sag and bound",
        "What each step did to one head's attention (**sag**) and output, beside the bound KeepKV proves for merging: "
        "2ε(1+ε)γ/(1-ε)², with ε the error of the predicted scores and γ the spread of the values.",
    )
    run = full_run("merging", "values, attention rows and the comparison with the full cache")
    if run is None:
        return
    view.at_place(run, partial(shown, run))


def shown(run: Run, layer: int, head: int) -> None:
    scope = st.segmented_control(
        "Show", SCOPES, default=SCOPES[0], key="scope", bind="query-params", required=True, width="content"
    )
    if scope == SCOPES[0]:
        one_head(run, layer, head)
        after_the_first_picture(f"sag-{run.record.run_id}", linked_text, run, layer, head)
    else:
        many_heads(run, [layer] if scope == SCOPES[1] else every_layer(run))


def one_head(run: Run, layer: int, head: int) -> None:
    table = table_of_head(run, *page.stamp(run), layer, head)
    figure = figures.sag_against_bound(table, page_theme())
    figure = along_text(figure, offset=run.record.prompt_tokens - 1, place=f"{layer}/{head}")
    reading = figures.read_sag_against_bound(table, predicts(run))
    facts(table)
    name = page.file_name(run, f"sag-bound-layer-{layer}-head-{head}")
    show(figure, table, reading, "sag-bound", name, page.source(run))
    let_it_out()
    how_it_is_computed(run)


def facts(table: pd.DataFrame) -> None:
    bounded = float(table["bound"].notna().mean())
    values = [
        ("Steps with a bound", percent(bounded), "Steps in which epsilon is below 1, so that the theorem speaks."),
        ("Median epsilon", number(float(table["epsilon"].median())), "Relative error of the predicted scores."),
        ("Value spread gamma", number(float(table["gamma"].iloc[0])), "Largest distance of a merged value to any."),
        ("Above the bound", f"{int((table['flag'] != '').sum())}", "Steps in which the output changed by more."),
    ]
    # Side by side as far as they fit: in columns of equal width a long label would be cut.
    with st.container(horizontal=True, gap="large"):
        for label, value, explanation in values:
            st.metric(label, "–" if value == "not recorded" else value, help=explanation, width="content")


def predicts(run: Run) -> bool:
    return _predicts(run, *page.stamp(run))


@st.cache_data(max_entries=64, show_spinner=False)
def _predicts(_run: Run, path: str, written: int) -> bool:
    return bound.predicts_scores(_run.select("steps", columns=["score_error"]))


@st.cache_data(max_entries=64, show_spinner=False)
def typical_perturbation(_run: Run, path: str, written: int) -> float | None:
    return bound.typical_perturbation(_run)


def how_it_is_computed(run: Run) -> None:
    own = "this method's own: it predicts scores (`score_error`)"
    other = "that of expecting each slot to get again what it got a step before, as this method predicts no scores"
    if words := predicted(run):
        st.caption(words)
    with st.expander("How the bound is computed"):
        st.markdown(
            f"- ε is {own if predicts(run) else other}: the mean over attention, not the largest of all slots, which "
            "the theorem asks for. So the line is a hopeful one, and a step above it need not contradict the theorem.\n"
            "- γ is the largest distance between the value of a token that was merged and any other value of the head. "
            "It does not exist where nothing was merged.\n"
            "- The bound is divided by the length of the true output, as the recorded changes are relative ones.\n"
            "- The theorem is about merging: where tokens were dropped too, a change above it is marked as such."
            + shared_slots(run)
        )


def predicted(run: Run) -> str:
    if run.record.method != "keepkv" or run.record.hyper_parameters.get("predict") != "ema":
        return ""
    changed = typical_perturbation(run, *page.stamp(run))
    said = "" if changed is None else f"; a decision changes a head's output by {percent(changed)} at the median"
    return f"This run merges for predicted scores, which no query has, so no merge of it is exact{said}."


def shared_slots(run: Run) -> str:
    heads = query_heads_per_slot(run)
    if heads == 1:
        return ""
    return (
        f"\n- It is about one query head; here {heads} share each slot, and no single log mass is exact for all of "
        "them: a change above it is marked as such. KeepKV fits its merges to the group by least squares; "
        "`per_head_mass` keeps each head's mass."
    )


@st.fragment
def linked_text(run: Run, layer: int, head: int) -> None:
    st.subheader("The text at a step")
    step = view.run_scrubber(run)
    view.head_text(run, layer, head, step, "sag-text")


def many_heads(run: Run, layers: list[int]) -> None:
    work = run.record.prompt_tokens * len(layers) * run.record.model.num_key_value_heads
    if work > MOST_WORK and not st.toggle(
        f"Read the values of {len(layers)} layers ({work:,} vectors)", key="read", bind="query-params"
    ):
        return
    table = table_of_layers(run, *page.stamp(run), tuple(layers))
    if table.empty:
        st.info("Nothing was recorded for these layers.", icon=":material/info:")
        return
    origin, medians = page.source(run), bound.over_heads(table)
    figure = along_text(figures.sag_against_bound(medians, page_theme()), offset=run.record.prompt_tokens - 1)
    reading = "Medians over heads. " + figures.read_sag_against_bound(medians, predicts(run))
    show(figure, medians, reading, "sag-medians", page.file_name(run, "sag-bound-medians"), origin)
    titles = {title: name for name, (title, _) in figures.MEASURES.items()}
    chosen = st.segmented_control(
        "Measure", list(titles), default=next(iter(titles)), key="measure", bind="query-params", required=True
    )
    measure = titles[chosen]
    heads = bound.heads_summary(table)
    figure, reading = figures.bound_by_head(heads, measure, page_theme()), figures.read_bound_by_head(heads, measure)
    show(figure, heads, reading, "sag-heads", page.file_name(run, f"bound-{measure}"), origin)
    how_it_is_computed(run)


def every_layer(run: Run) -> list[int]:
    return [layer for layer in range(run.record.model.num_hidden_layers) if layer not in run.record.sliding_layers]


@st.cache_data(max_entries=64, show_spinner=False)
def table_of_head(_run: Run, path: str, written: int, layer: int, head: int) -> pd.DataFrame:
    steps, events = page.head_steps(_run, layer, head), page.head_events(_run, layer, head)
    arrays = bound.read_arrays(_run, layer, head, bound.predicts_scores(steps))
    return bound.bound_over_steps(steps, events, arrays, query_heads_per_slot(_run))


@st.cache_data(max_entries=8, show_spinner="Reading values and attention of every head")
def table_of_layers(_run: Run, path: str, written: int, layers: tuple[int, ...]) -> pd.DataFrame:
    return bound.bound_by_head(_run, list(layers))


main()
