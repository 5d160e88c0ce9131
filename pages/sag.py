"""Bound of the loss: the change of attention and output at each step, compared with KeepKV's bound, for any method."""

from __future__ import annotations

from functools import partial

import pandas as pd
import streamlit as st

from app.base.lazy_views import after_first_chart, flush
from app.base.theme import theme as page_theme
from app.base.widgets import one_of
from app.components.tokentext import along_text
from app.navigation.place import recorded_layers
from app.run_views import page, view
from app.run_views.require_level import full_run
from app.session.open_runs import BY_STAMP
from kvlab.trace.reader import Run
from kvlab.views import bound
from kvlab.views.base.head_map import Place
from kvlab.views.base.words import number, percent

MAX_VECTORS = 2_000_000  # tokens x layers x heads whose values are read without a switch
typical_perturbation = st.cache_data(max_entries=64, hash_funcs=BY_STAMP, show_spinner=False)(
    bound.typical_perturbation
)
SCOPES = ("one head", "heads of the layer", "all heads")


def main() -> None:
    page.heading(
        "Bound of the loss",
        "How each step changed one head's attention (**sag**) and output, beside the largest change that KeepKV's "
        "theorem allows a merge. A step above the bound lost more than the theorem covers.",
    )
    run = full_run("bound", "values, attention rows and the attention with nothing dropped")
    if run is None:
        return
    view.at_place(run, partial(show_scope, run))


def show_scope(run: Run, layer: int, head: int) -> None:
    scope = one_of("Show", SCOPES, key="scope", width="content")
    if scope == SCOPES[0]:
        one_head(run, layer, head)
        after_first_chart(f"sag-{run.record.run_id}", linked_text, run, layer, head)
    else:
        many_heads(run, [layer] if scope == SCOPES[1] else recorded_layers(run), (layer, head))


def one_head(run: Run, layer: int, head: int) -> None:
    table = table_of_head(run, layer, head)
    figure = bound.sag_against_bound(table, page_theme())
    figure = along_text(figure, offset=run.record.prompt_tokens - 1, place=f"{layer}/{head}")
    caption = bound.caption_sag_against_bound(table, predicts(run))
    page.verdict(bound.verdict(table, run.record.label, (layer, head)))
    facts(table)
    page.show_figure(run, figure, table, caption, "sag-bound", f"sag-bound-layer-{layer}-head-{head}")
    flush()
    how_it_is_computed(run)


def facts(table: pd.DataFrame) -> None:
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


@st.cache_data(max_entries=64, hash_funcs=BY_STAMP, show_spinner=False)
def predicts(run: Run) -> bool:
    return bound.predicts_scores(run.select("steps", columns=["score_error"]))


def how_it_is_computed(run: Run) -> None:
    own = "the error of this method's predicted scores (`score_error`)"
    other = "the error of predicting each slot's score of the step before, as this method predicts no scores"
    if words := prediction_note(run):
        st.caption(words)
    with st.expander("How the bound is computed"):
        st.markdown(
            "- The bound is 2ε(1+ε)γ/(1-ε)², with ε the error of the predicted scores and γ the spread of the values.\n"
            f"- ε is {own if predicts(run) else other}: its mean over attention, while the theorem needs the largest "
            "over all slots. So the line is optimistic, and a step above it need not contradict the theorem.\n"
            "- γ is the largest distance between the value of a merged token and any other value of the head. It is "
            "undefined without merges.\n"
            "- The bound is divided by the norm of the true output, as the recorded changes are relative.\n"
            "- The theorem is about merging: if tokens were evicted too, a change above the bound is marked."
            + shared_slots(run)
        )


def prediction_note(run: Run) -> str:
    if run.record.method != "keepkv" or run.record.hyper_parameters.get("predict") != "ema":
        return ""
    changed = typical_perturbation(run)
    effect = "" if changed is None else f"; a decision changes a head's output by {percent(changed)} at the median"
    return f"This run merges for predicted scores, which no query has exactly, so no merge is exact{effect}."


def shared_slots(run: Run) -> str:
    heads = bound.query_heads_per_slot(run)
    if heads == 1:
        return ""
    return (
        f"\n- The theorem is about one query head. Here {heads} share each slot, and no log mass is exact for all of "
        "them; a change above the bound is marked. KeepKV fits its merges to the group by least squares; "
        "`per_head_mass` stores a mass per query head."
    )


@st.fragment
def linked_text(run: Run, layer: int, head: int) -> None:
    st.header("The text at a step")
    step = view.run_scrubber(run)
    view.head_text(run, layer, head, step, "sag-text")


def many_heads(run: Run, layers: list[int], focus: Place) -> None:
    if not page.reads_all(run, layers, MAX_VECTORS, f"Read the values of {len(layers)} layers ({{vectors:,}} vectors)"):
        return
    table = table_of_layers(run, tuple(layers))
    if table.empty:
        st.info("Nothing was recorded for these layers.", icon=":material/info:")
        return
    medians = bound.over_heads(table)
    figure = along_text(bound.sag_against_bound(medians, page_theme()), offset=run.record.prompt_tokens - 1)
    caption = f"Medians over heads. {bound.caption_sag_against_bound(medians, predicts(run))}"
    page.show_figure(run, figure, medians, caption, "sag-medians", "sag-bound-medians")
    titles = {title: name for name, (title, _) in bound.MEASURES.items()}
    measure = titles[one_of("Measure", list(titles), key="measure")]
    heads = bound.heads_summary(table)
    figure = bound.bound_by_head(heads, measure, page_theme(), focus)
    caption = bound.caption_bound_by_head(heads, measure)
    page.show_figure(run, figure, heads, caption, "sag-heads", f"bound-{measure}", focus)
    how_it_is_computed(run)


@st.cache_data(max_entries=64, hash_funcs=BY_STAMP, show_spinner=False)
def table_of_head(run: Run, layer: int, head: int) -> pd.DataFrame:
    steps = page.head_steps(run, layer, head)
    events = page.head_events(run, layer, head)
    arrays = bound.read_arrays(run, layer, head, bound.predicts_scores(steps))
    return bound.bound_over_steps(steps, events, arrays, bound.query_heads_per_slot(run))


@st.cache_data(max_entries=8, hash_funcs=BY_STAMP, show_spinner="Reading values and attention of every head")
def table_of_layers(run: Run, layers: tuple[int, ...]) -> pd.DataFrame:
    return bound.bound_by_head_frame(run, list(layers))


main()
